"""Models that the soundness bench attacks: certified ones, trained and made by hand, with many kinds of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.certificates.document import Certificate
from smle.errors import NotCertifiedError
from smle.heads.box.estimators.learned_box import SMLEClassifier, SMLERegressor
from smle.heads.box.network.assurance import CertifiedNetwork, certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.program import Box
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.networks.backbones import MLP
from smle.networks.units import DataScale
from smle.regions.cells import Cells
from smle.rules import Choice, Label, Specification
from studies.experiments.paper_network import FreeBox
from tests.support.sampling import uniform_points

__all__ = ["Subject", "data_for", "makers"]

Array = npt.NDArray[np.float64]

BRAKING = """
inputs: {distance: [0, 200], speed: [0, 40], friction: [0.1, 1.0]}
outputs: [brake]
rules:
  - {name: emergency, when: distance <= 10 and speed >= 20, then: brake >= 0.8}
  - {name: tailgating, when: distance <= 0.8 * speed - 4, then: brake >= 0.5}
  - {name: phantom, when: distance >= 150 and speed < 10.1, then: brake <= 0.1}
  - {name: range, then: 0 <= brake <= 1}
"""
OBLIQUE = """
inputs: {a: [-3, 5], b: [-7, 2], c: [0.1, 90]}
outputs: [y, w]
rules:
  - {name: one, when: a - 0.7 * b + 0.3 * c <= 11.7, then: y <= 1 and y - 0.3 * w <= 0.7}
  - {name: two, when: 0.1 * a + 0.7 * b >= -0.9 and c < 45.3, then: y >= 0.1 and w <= 1.3}
  - {name: three, when: a + 1.1 * b + 0.07 * c >= 1.9, then: y + w <= 1.7}
  - {name: four, when: 0.3 * a - 0.2 * b <= 0.7 and a + b >= -6.1, then: w >= -0.9}
"""
DOSE = """
inputs: {weight: [2, 90], age: [0, 99], kidney: [0.1, 1.5]}
outputs: [dose, pause]
rules:
  - {name: by weight, then: 0 <= dose <= 0.5 * weight + 1.3}
  - {name: frail, when: age + 31.7 * kidney >= 81.3, then: dose <= 0.2 * weight + 2.1}
  - {name: weak kidney, when: kidney - 0.013 * age <= 0.3, then: pause >= 8.3 and dose <= 20 + 0.1 * age}
  - {name: pause, then: 4 <= pause <= 48}
"""
LABELS = """
inputs: {p: [0, 1], q: [-1, 1], r: [0, 7]}
labels: [cat, dog, animal, car, night]
rules:
  - {name: kinds, then: (cat implies animal) and (dog implies animal)}
  - {name: not both, then: not (cat and dog)}
  - {name: street, when: p + 0.3 * q >= 0.7, then: not (car and dog) and (car or night)}
  - {name: dark, when: 0.7 * q - 0.1 * r <= -0.33, then: night}
  - {name: bright, when: r > 3.3 and p >= 0.2, then: not (night and car)}
"""
ADVICE = """
inputs: {distance: [0, 60], angle: [-3.1, 3.1], speed: [1, 12]}
choices: {advice: [clear, weak left, left, weak right, right]}
rules:
  - {name: near, when: distance - 1.7 * speed <= 3.3, then: advice != clear}
  - {name: left side, when: 0.3 * angle + 0.01 * distance >= 0.7, then: advice != left}
  - {name: head on, when: distance <= 9.9 and angle <= 0.7 and angle >= -0.7, then: "advice in [left, right]"}
"""
MIXED = """
inputs:
  speed: [0, 40]
  load: [-1, 1]
  road: {categories: [dry, wet, icy]}
  tyre: {categories: [summer, winter]}
outputs: [brake]
labels: [warn, stop]
choices: {advice: [keep, slow, halt], gear: {options: [low, high], pick: min}}
rules:
  - {name: icy, when: road == icy and speed > 10, then: brake >= 0.5 and advice != keep}
  - {name: heavy, when: speed + 3.3 * load >= 20.1, then: warn}
  - {name: never both, then: not (warn and stop)}
  - {name: winter, when: tyre == winter, then: gear == low}
"""
ONE_REGION = """
inputs: {speed: [0, 40], load: [-1, 1], grip: [0.1, 0.9]}
outputs: [brake, light]
rules:
  - {name: fast, when: speed >= 20.1 and load < 0.7 and grip > 0.3, then: brake - 0.3 * light >= 0.5 and light <= 0.7}
"""
DIFFERENCE = """
inputs: {s: [-2, 2], t: [0.1, 3]}
outputs: [p, q]
rules:
  - {name: near, then: p - q <= 1 and q - p <= 1}
  - {name: nearer, when: 0.3 * s + 0.7 * t <= 0.9, then: p - q <= 0.25}
  - {name: apart, when: s - 0.1 * t >= 1.1, then: p - q >= 0.125}
"""
AROUND_ZERO = """
inputs: {a: [-1, 1], b: [-2, 2], c: [-3, 0]}
outputs: [y, w]
rules:
  - {name: below, when: a < 0, then: y <= -0.1}
  - {name: not below, when: a >= 0, then: y >= 0.1}
  - {name: above, when: b > 0 and c < 0, then: w >= 0.3}
  - {name: not above, when: b <= 0, then: w <= 0.2}
"""
"""Regions that meet at exactly 0: what separates them must survive a processor that flushes subnormal numbers."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A certified model: its rules and cells, the network as deployed, the certificate that was accepted."""

    name: str
    origin: str
    spec: Specification
    cells: Cells
    network: CertifiedNetwork
    certificate: Certificate
    learned: BoxNetwork | None = None  # what it was made of

    def __post_init__(self) -> None:
        self.certificate.check()

    @property
    def kind(self) -> str:
        """How it was made, its bounds, and whether the head has a gate."""
        return f"{self.origin}, {self.bounds} bounds, {'a gate' if self.cells.gated else 'no gate'}"

    @property
    def program(self) -> Box:
        """The deployed head in NumPy, which torch runs too."""
        found = self.network.head.program
        assert isinstance(found, Box)
        return found

    @property
    def bounds(self) -> str:
        """Kind of bounds: constant, affine or network."""
        return str(self.certificate.document["program"]["bounds"])


def makers(*, quick: bool) -> dict[str, Callable[[], Subject]]:
    """Return the models by name, each as a function that makes it. `quick`: two trained ones only, and briefly."""
    trained: dict[str, Callable[[], Subject]] = {
        "braking": partial(_trained, "braking", BRAKING, quick=quick),
        "oblique": partial(_trained, "oblique", OBLIQUE, quick=quick),
        "dose, affine": partial(_trained, "dose, affine", DOSE, quick=quick, bounds="affine"),
        "labels": partial(_trained, "labels", LABELS, quick=quick),
        "advice": partial(_trained, "advice", ADVICE, quick=quick),
        "advice, affine": partial(_trained, "advice, affine", ADVICE, quick=quick, bounds="affine"),
    }
    if quick:
        trained = {name: trained[name] for name in ("oblique", "dose, affine")}
    return trained | {
        "oblique, at the limit": partial(_drawn, "oblique, at the limit", OBLIQUE),
        "oblique, affine": partial(_drawn, "oblique, affine", OBLIQUE, bounds="affine"),
        "labels, wide": partial(_drawn, "labels, wide", LABELS, embedding=48),
        "mixed": partial(_drawn, "mixed", MIXED),
        "mixed, affine": partial(_drawn, "mixed, affine", MIXED, bounds="affine"),
        "dose, one head": partial(_drawn, "dose, one head", DOSE, bounds="affine", gate=False),
        "one region": partial(_drawn, "one region", ONE_REGION),
        "dose, network": partial(_drawn, "dose, network", DOSE, embedding=6, bounds="network"),
        "difference of large numbers": _difference,
        "around zero": partial(_drawn, "around zero", AROUND_ZERO),
        "around zero, affine": partial(_drawn, "around zero, affine", AROUND_ZERO, bounds="affine"),
        "oblique, crossing constants": partial(_crossing, "oblique, crossing constants", OBLIQUE, kind="constant"),
        "oblique, crossing": partial(_crossing, "oblique, crossing", OBLIQUE, kind="affine"),
        "dose, crossing": partial(_crossing, "dose, crossing", DOSE, kind="affine", gate=False),
        "labels, crossing": partial(_crossing, "labels, crossing", LABELS, kind="affine"),
        "around zero, crossing": partial(_crossing, "around zero, crossing", AROUND_ZERO, kind="affine"),
        "oblique, crossing networks": partial(_crossing, "oblique, crossing networks", OBLIQUE, kind="network"),
    }


def data_for(spec: Specification, rows: int, *, seed: int = 0) -> tuple[Array, Array]:
    """Return inputs and outputs of a task that knows nothing of the rules: waves, several times the rules' size."""
    rng = np.random.default_rng(seed)
    X = uniform_points(spec, rng, rows, dtype=np.float64).astype(np.float64)
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    scaled = 2 * (X - low) / (high - low) - 1
    m = len(spec.targets)
    waves = np.sin(scaled @ rng.normal(size=(X.shape[1], m)) * 2 + rng.uniform(0, 6, m))
    return X, 3 * waves + rng.normal(0, 0.1, waves.shape)


def _trained(name: str, text: str, *, quick: bool, bounds: str = "fixed") -> Subject:
    spec = Specification.from_yaml(text)
    X, Y = data_for(spec, 400 if quick else 2000)
    options: dict[str, Any] = {
        "hidden_layer_sizes": (24,), "embedding": 12, "bounds": bounds, "max_epochs": 4 if quick else 30,
        "refit_heads": not quick, "random_state": 0, "verbose": False, "compare": False,
    }  # fmt: skip
    first = spec.outputs[0]
    model: Any
    if isinstance(first, Choice):
        model = SMLEClassifier(spec, **options).fit(X, np.array(first.options, dtype=object)[Y.argmax(axis=1)])
    elif isinstance(first, Label):
        model = SMLEClassifier(spec, **options).fit(X, (Y > 0).astype(int))
    else:
        model = SMLERegressor(spec, **options).fit(X, Y[:, 0] if Y.shape[1] == 1 else Y)
    return Subject(name, "trained", spec, model.deployed_.cells, model.to_torch(), model.certificate_)


def _backbone(spec: Specification, embedding: int) -> nn.Module:
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    return MLP((16,), embedding, shift=(low + high) / 2, scale=(high - low) / 4)


def _drawn(name: str, text: str, *, embedding: int = 12, bounds: str = "fixed", gate: bool = True) -> Subject:
    """Return heads drawn at random, several times too large, and projected: at the limit of what is provable."""
    spec = Specification.from_yaml(text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = BoxNetwork(_backbone(spec, embedding), spec, embedding=embedding, bounds=bounds, gate=gate)
        for parameter in network.heads.parameters():
            parameter.data.add_(3 * torch.randn(parameter.shape))
        for parameter in network.box.parameters():
            parameter.data.add_(0.1 * torch.randn(parameter.shape))
    return _subject(name, project(network))


def _crossing(name: str, text: str, *, kind: str, gate: bool = True) -> Subject:
    """Return projected heads behind bounds that cross: some units everywhere, some in a part of the domain."""
    spec, n = Specification.from_yaml(text), 6
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    frame = DataScale((low + high) / 2, (high - low) / 2, np.zeros(len(spec.targets)), np.ones(len(spec.targets)))
    d = len(spec.columns)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        bounds: Any = "fixed"
        if kind == "network":
            bounds = tuple(nn.Sequential(nn.Linear(d, 4), nn.ReLU(), nn.Linear(4, n)) for _ in range(2))
        network = BoxNetwork(_backbone(spec, n), spec, embedding=n, bounds=bounds, gate=gate, frame=frame)
        if kind != "network":
            network.box = FreeBox(n, d if kind == "affine" else 0)
        for parameter in network.box.parameters():
            parameter.data.copy_(0.5 * torch.randn(parameter.shape))
        for parameter in network.heads.parameters():
            parameter.data.add_(torch.randn(parameter.shape))
    return _subject(name, project(network))


def _subject(name: str, network: BoxNetwork) -> Subject:
    certificate = certify(network)
    deployed = CertifiedNetwork(network.backbone, network.spec, certificate)
    return Subject(name, "by hand", network.spec, network.cells, deployed, certificate, network)


def _difference() -> Subject:
    """Return heads whose outputs are large and share most of their weights: rounding is as bad as it gets.

    The room that is left by the rounding of numbers around 10^4 is filled by bisection, as far as the checker agrees.
    """
    spec = Specification.from_yaml(DIFFERENCE)
    n = 16
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        network = BoxNetwork(_backbone(spec, n), spec, embedding=n, bounds="fixed").eval()
    rng = np.random.default_rng(2)
    shared, own = rng.normal(0, 500, n).astype(np.float32), rng.normal(size=n)
    own /= np.abs(own).sum()
    over = network.frozen_heads()
    active = [{spec.rules[rule].name for region in cell for rule in network.cells.rules[region]}
              for cell in network.cells]  # fmt: skip

    def heads(share: float) -> FrozenHeads:
        made = []
        for names in active:
            low, high = 0.125 if "apart" in names else -1.0, 0.25 if "nearer" in names else 1.0
            middle, half = (low + high) / 2, share * (high - low) / 2
            W = np.stack([shared + (half * own).astype(np.float32), shared])
            made.append(Head(W, np.array([7000 + middle, 7000]), fallback=np.array([middle, 0])))
        return FrozenHeads(over.bounds, tuple(made))

    best, step = 0.0, 0.5
    for _ in range(12):
        network.pin(heads(best + step))
        try:
            certify(network)
            best += step
        except NotCertifiedError:
            pass
        step /= 2
    network.pin(heads(best))
    return _subject("difference of large numbers", network)
