"""Certified models that are attacked: boxes, heads of rules and of whole numbers, trained and made by hand."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.multioutput import MultiOutputRegressor
from torch import nn

import smle_check
from smle.certificates.document import Certificate
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.estimators import SafeRegressor
from smle.heads.box.estimators.learned_box import SMLEClassifier, SMLERegressor
from smle.heads.box.network.assurance import certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.heads.grid.grid_author import certify_grid
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import program_of
from smle.networks.backbones import MLP
from smle.networks.safe_network import SafeNetwork
from smle.networks.units import DataScale
from smle.rules import Choice, Label, Specification
from smle_check.heads.candidates import checked_of
from smle_check.heads.clips import limits_of
from studies.experiments.paper_network import FreeBox
from studies.harness import Array, quietly, seeded
from tests.support.drawn_rules import draw
from tests.support.grid_rules import FAMILIES, GridJudge
from tests.support.sampling import Judge, Judgment, uniform_points

RULES: dict[str, str] = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))
"""Texts of rule sets by name."""
Targets = Callable[[Any, np.random.Generator], Any]
"""(inputs, random numbers) -> what a model is trained on."""
_EXACTLY = 0.1  # of the points of whole numbers are judged in Fractions throughout


class _Whole(GridJudge):
    """Judges whole numbers through the interface of `Judge`; there are no margins."""

    def judge(self, X: Array, Y: Array) -> Judgment:
        part = round(_EXACTLY * len(X))
        wrong = [self.wrong(X[:part], Y[:part], exact=True), self.wrong(X[part:], Y[part:]) + part]
        rows = np.concatenate(wrong).astype(np.intp)
        return Judgment({0: rows} if len(rows) else {}, None)


@dataclass(frozen=True, eq=False)
class Subject:
    """A certified head, as it is deployed.

    * `family`: box, rules, grid, sequences or graphs. `origin`: how it was made, for the page.
    * `model`: what computes the embeddings or the answers that the head reads, if there is a model in front of it.
    * `network`: a box in torch, and `learned`, the network that it was made of. `onnx`: model and head as one file.
    * `units`: sizes of the outputs.
    """

    name: str
    family: str
    origin: str
    spec: Specification
    certificate: Certificate
    units: Array
    model: Callable[[Array], Array] | None = None
    network: SafeNetwork | None = None
    learned: BoxNetwork | None = None
    onnx: bytes | None = None

    def __post_init__(self) -> None:
        self.certificate.check()

    @property
    def program(self) -> Any:
        """The deployed head in NumPy."""
        return program_of(self.certificate) if self.network is None else self.network.head.program

    @property
    def judge(self) -> Any:
        """What decides exactly whether answers obey."""
        return _Whole(self.spec) if self.family == "grid" else Judge(self.spec)

    @property
    def is_exported(self) -> bool:
        """Whether there is an ONNX form: bounds by networks have none."""
        return str(self.certificate.document["program"].get("bounds")) != "network"


# --- boxes


def boxes(*, quick: bool) -> dict[str, Callable[[], Subject]]:
    """Return the boxes by name, each as a function that makes it. `quick`: two trained ones only, and briefly."""
    trained = {
        "braking": "fixed", "oblique": "fixed", "dose, affine": "affine", "labels": "fixed", "advice": "fixed",
        "advice, affine": "affine",
    }  # fmt: skip
    if quick:
        trained = {name: trained[name] for name in ("oblique", "dose, affine")}
    drawn: dict[str, dict[str, Any]] = {
        "oblique, at the limit": {},
        "oblique, affine": {"bounds": "affine"},
        "labels, wide": {"embedding": 48},
        "mixed": {},
        "mixed, affine": {"bounds": "affine"},
        "dose, one head": {"bounds": "affine", "gate": False},
        "one region": {},
        "dose, network": {"embedding": 6, "bounds": "network"},
        "around zero": {},
        "around zero, affine": {"bounds": "affine"},
    }
    crossing: dict[str, dict[str, Any]] = {
        "oblique, crossing constants": {"kind": "constant"},
        "oblique, crossing": {"kind": "affine"},
        "dose, crossing": {"kind": "affine", "gate": False},
        "labels, crossing": {"kind": "affine"},
        "around zero, crossing": {"kind": "affine"},
        "oblique, crossing networks": {"kind": "network"},
    }
    return {
        **{name: partial(_trained, name, bounds, quick=quick) for name, bounds in trained.items()},
        **{name: partial(_drawn, name, **options) for name, options in drawn.items()},
        "difference of large numbers": _difference,
        **{name: partial(_crossing, name, **options) for name, options in crossing.items()},
    }


def _rules(name: str) -> Specification:
    """Return the rules that a box is named after."""
    return Specification.from_yaml(RULES[name.split(",")[0]])


def _box(
    name: str, origin: str, network: SafeNetwork, certificate: Certificate, learned: BoxNetwork | None = None
) -> Subject:
    spec, head = network.spec, certificate.document["program"]
    gate = "a gate" if certificate.document["gate"]["regions"] else "no gate"

    def embeddings(X: Array) -> Array:
        with torch.inference_mode():
            found: Array = network.backbone(torch.from_numpy(X.astype(np.float32))).numpy()
        return found

    words = f"{origin}, {head['bounds']} bounds, {gate}"
    units = np.ones(len(spec.targets))
    return Subject(name, "box", words, spec, certificate, units, embeddings, network, learned)


def data_for(spec: Specification, rows: int) -> tuple[Array, Array]:
    """Return inputs and outputs of a task that knows nothing of the rules: waves, several times the rules' size."""
    rng = np.random.default_rng(0)
    X = uniform_points(spec, rng, rows, dtype=np.float64).astype(np.float64)
    low, high = spec.ends()
    scaled = 2 * (X - low) / (high - low) - 1
    m = len(spec.targets)
    waves = np.sin(scaled @ rng.normal(size=(X.shape[1], m)) * 2 + rng.uniform(0, 6, m))
    return X, 3 * waves + rng.normal(0, 0.1, waves.shape)


def _trained(name: str, bounds: str, *, quick: bool) -> Subject:
    spec = _rules(name)
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
    return _box(name, "trained", model.to_torch(), model.certificate_)


def _backbone(spec: Specification, embedding: int) -> nn.Module:
    low, high = spec.ends()
    return MLP((16,), embedding, shift=(low + high) / 2, scale=(high - low) / 4)


def _drawn(name: str, *, embedding: int = 12, bounds: str = "fixed", gate: bool = True) -> Subject:
    """Return heads drawn at random, several times too large, and projected: at the limit of what is provable."""
    spec = _rules(name)
    with seeded(1):
        network = BoxNetwork(_backbone(spec, embedding), spec, embedding=embedding, bounds=bounds, gate=gate)
        for parameter in network.heads.parameters():
            parameter.data.add_(3 * torch.randn(parameter.shape))
        for parameter in network.box.parameters():
            parameter.data.add_(0.1 * torch.randn(parameter.shape))
    return _subject(name, project(network))


def _crossing(name: str, *, kind: str, gate: bool = True) -> Subject:
    """Return projected heads behind bounds that cross: some units everywhere, some in a part of the domain."""
    spec, n = _rules(name), 6
    low, high = spec.ends()
    frame = DataScale((low + high) / 2, (high - low) / 2, np.zeros(len(spec.targets)), np.ones(len(spec.targets)))
    d = len(spec.columns)
    with seeded(3):
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
    deployed = SafeNetwork.of(network.backbone, network.spec, certificate).eval()
    return _box(name, "by hand", deployed, certificate, network)


def _difference() -> Subject:
    """Return heads whose outputs are large and share most of their weights: rounding is as bad as it gets.

    The room that is left by the rounding of numbers around 10^4 is filled by bisection, as far as the checker agrees.
    """
    spec = Specification.from_yaml(RULES["difference"])
    n = 16
    with seeded(2):
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


# --- heads of rules


def rule_heads() -> dict[str, Callable[[], Subject]]:
    """Return the heads of rules by name, each as a function that makes it."""
    boosting = MultiOutputRegressor(HistGradientBoostingRegressor(max_iter=40))
    behind: dict[str, tuple[Any, Targets]] = {
        "bank, boosting": (boosting, bank),
        "doses, boosting": (boosting, doses),
        "bank, ridge": (Ridge(), bank),
        "shares, ridge": (Ridge(), shares),
    }
    names = (
        "ramps", "ranges", "touching", "tables", "sums with tables", "oblique", "labels", "advice", "mixed",
        "around zero", "ten mixed limits",
    )  # fmt: skip
    listed = {name: RULES[name] for name in names} | {"many limits": many_limits()}
    drawn = {f"random {seed}": draw(seed) for seed in (3, 5, 8, 13, 21, 34)}
    return {
        **{
            f"rules: {name}": partial(corrected, f"rules: {name}", RULES[name.split(",")[0]], *made)
            for name, made in behind.items()
        },
        **{f"rules: {name}": partial(stated, f"rules: {name}", text) for name, text in listed.items()},
        **{f"rules: {name}": partial(stated, f"rules: {name}", own.text, own.units) for name, own in drawn.items()},
    }


def _words(certificate: Certificate) -> str:
    """Say which clips, clauses and pairs settle the rules."""
    stored = smle_check.StatedSpecification(certificate.document["specification"], certificate.block)
    checked, parts = checked_of(stored), [f"{len(limits_of(stored))} clips"]
    if not checked.is_empty:
        pairs = sum(len(stored.rules[r].exclusions) for r in checked.excluding)
        leaves = certificate.tensors["safe.offset"].shape[0]
        parts += [f"{len(checked.clauses)} clauses", f"{pairs} pairs", f"{leaves} leaves"]
    return ", ".join(parts)


def stated(name: str, text: str, units: Array | None = None) -> Subject:
    """Return the head of rules that are stated, without a model in front of it."""
    spec = Specification.from_yaml(text)
    units = np.ones(len(spec.targets)) if units is None else units
    certificate = certify_rules(spec, scale=units)
    return Subject(name, "rules", _words(certificate), spec, certificate, units)


def corrected(name: str, text: str, estimator: Any, targets: Targets, *, rows: int = 3000) -> Subject:
    """Return a fitted estimator with its head: the stored form, and both as one ONNX file."""
    spec, rng = Specification.from_yaml(text), np.random.default_rng(0)
    X = uniform_points(spec, rng, rows, dtype=np.float64)
    Y = targets(X, rng)
    model: Any = SafeRegressor(spec, estimator=estimator, compare=False).fit(X, Y)
    with tempfile.TemporaryDirectory() as folder:
        model.to_onnx(Path(folder) / "model.onnx")
        data = (Path(folder) / "model.onnx").read_bytes()

    def answers(X: Array) -> Array:
        with quietly():  # at corners of the domain answers are often moved
            found: Array = model.deployed_.answer(X, count=False).answers.astype(np.float32)
        return found

    units, certificate = np.asarray(Y.std(axis=0)).reshape(-1), model.certificate_
    return Subject(name, "rules", _words(certificate), spec, certificate, units, answers, onnx=data)


# --- heads of whole numbers


def drawn_grid(family: str, turn: int, refused: Counter[str] | None = None) -> Subject:
    """Draw rule sets until one is certified; count those that contradict themselves or are not decided."""
    rng = np.random.default_rng([list(FAMILIES).index(family), turn])
    refused = Counter() if refused is None else refused
    while True:
        try:
            spec = Specification.from_yaml(FAMILIES[family](rng))
            certificate = certify_grid(spec)
        except (ContradictionError, RuleError):
            refused["contradicts itself"] += 1
        except NotCertifiedError:
            refused["not decided"] += 1
        else:
            units = np.ones(len(spec.targets))
            return Subject(f"whole numbers: {family}", "grid", "random rule sets", spec, certificate, units)


# --- rules that are made, and simulated targets


def many_limits() -> str:
    """Return 70 limits on intervals of an input, and a coupled rule."""
    rng, lines = np.random.default_rng(0), ["inputs: {a: [0, 100], b: [-1, 1]}", "outputs: [y, w]", "rules:"]
    for r in range(70):
        at = rng.uniform(0, 95)
        lines.append(
            f"  - {{name: r{r}, when: {at:.4f} <= a < {at + 4:.4f}, then: y <= {10 + r % 7}.1 and w >= -3.{r}}}"
        )
    return "\n".join([*lines, "  - {name: tied, when: a + 30 * b >= 20.2, then: y - w <= 9.9}"]) + "\n"


def bank(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules of the bank."""
    income, _, debt = X.T
    limit = 0.3 * income * (1 + 0.3 * rng.normal(size=len(X))) - 0.2 * debt
    return np.stack([limit, 13 - income / 60_000 + 4 * rng.normal(size=len(X))], axis=1)


def shares(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules of shares."""
    raw = np.stack([0.5 + 0.4 * np.sin(X[:, 0]), 0.3 + 0.3 * X[:, 1], 0.2 + 0.1 * X[:, 0]], axis=1)
    return raw + 0.1 * rng.normal(size=raw.shape)


def doses(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules of doses."""
    weight, age, kidney = X.T
    dose = 0.045 * weight * (0.8 + 0.2 * np.sin(age / 15)) + 0.1 * rng.normal(size=len(X))
    return np.stack([dose, 20 / kidney + rng.normal(size=len(X))], axis=1)
