"""Model folders made by hand: rules, weights and certificate without training, written from the format's text.

The tensors are put together here from docs/certificate-format.md, not taken from the torch program, so that the
document is tested for being complete; `test_builder_agrees_with_torch` compares the two.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smle_check
from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.certificates.issue import compiled
from smle.heads.box.box_program import Box
from smle.heads.box.network.deployed import gate_of
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.heads.box.proof.issue_box import issue
from smle.regions.cell_search import find_cells
from smle.regions.cells import Cells, regions_of
from smle.rules import Row, Specification
from smle_check.floats import BINARY32, BINARY64, nearest, round_up
from smle_check.program import Gate, box

U, TINY = Fraction(1, 2**24), Fraction(1, 2**126)


def digested(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with its digest made new, as an attacker would."""
    body = {key: value for key, value in document.items() if key != "digest"}
    return {**body, "digest": hashlib.sha256(smle_check.canonical(body)).hexdigest()}


def reseal(folder: Path, **binds: Any) -> None:
    """Bind other digests in a model folder, without any those of its files, and make the certificate's own new."""
    document = json.loads((folder / "certificate.json").read_bytes())
    found = {role: folder / name for role, name in smle_check.FILES.items()}
    document["binds"] |= binds or {
        role: hashlib.sha256(place.read_bytes()).hexdigest()
        for role, place in found.items()
        if role in ("model", "rules") and place.exists()
    }
    (folder / "certificate.json").write_bytes(smle_check.canonical(digested(document)) + b"\n")


@dataclass
class Package:
    """Everything a model folder holds, open to changes; `seal` recomputes all digests, as an attacker would."""

    document: dict[str, Any]
    weights: dict[str, np.ndarray]
    block: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)

    def copy(self) -> Package:
        weights = {name: array.copy() for name, array in self.weights.items()}
        return Package(copy.deepcopy(self.document), weights, self.block, dict(self.files))

    @property
    def tensors(self) -> dict[str, smle_check.Tensor]:
        return tensors_of(self.weights)

    def seal(self) -> Package:
        tensors = self.tensors
        backbone = {name: tensor for name, tensor in tensors.items() if name.startswith("backbone.")}
        digests = {role: hashlib.sha256(data).hexdigest() for role, data in self.files.items()}
        self.document["binds"] = {
            "head": smle_check.weights_digest({k: v for k, v in tensors.items() if k not in backbone}),
            "backbone": smle_check.weights_digest(backbone) if backbone else digests.get("onnx"),
            "block": hashlib.sha256(self.block).hexdigest() if self.block else None,
            **{role: digests.get(role) for role in ("model", "rules")},
        }
        self.document["digest"] = digested(self.document)["digest"]
        return self

    @property
    def text(self) -> bytes:
        return smle_check.canonical(self.document) + b"\n"

    def check(self) -> list[smle_check.Proved]:
        """Check as it stands; digests are not touched."""
        return smle_check.check_certificate(self.text, self.tensors, self.block, self.files)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "certificate.json").write_bytes(self.text)
        (folder / "model.safetensors").write_bytes(safetensors_bytes(self.tensors))
        if self.block:
            (folder / "certificate.bin").write_bytes(self.block)
        for role, name in (("model", "model.json"), ("rules", "rules.yaml"), ("onnx", "model.onnx")):
            if role in self.files:
                (folder / name).write_bytes(self.files[role])
        return folder


def repacked(certificate: Certificate) -> Package:
    """Open a certificate to changes."""
    weights = {name: array.copy() for name, array in arrays_of(certificate.tensors).items()}
    return Package(copy.deepcopy(certificate.document), weights, certificate.block, dict(certificate.files))


def refusal(package: Package) -> str:
    """Return why the checker refuses a changed model, sealed anew; fails if it does not."""
    with pytest.raises(smle_check.Rejected) as caught:
        package.seal().check()
    return str(caught.value)


def safetensors_bytes(tensors: dict[str, smle_check.Tensor]) -> bytes:
    """Write the weight file by hand: header length, header, tensors."""
    header, body = {}, b""
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def slack_of(row: Row, spec: Specification) -> Fraction:
    """The guard's slack for an oblique row, as the format defines it."""
    n = len(row.coefficients)
    gamma = Fraction(n + 1, 2**53 - n - 1)
    total, spread, other = Fraction(0), Fraction(0), Fraction(0)
    for i, q in row.coefficients:
        stored = nearest(q, BINARY64)
        size = max(abs(nearest(end, fmt)) for end in (spec.lower[i], spec.upper[i]) for fmt in (BINARY32, BINARY64))
        other += abs(q - stored) * size + 2 * TINY * abs(stored)
        total += abs(stored) * size
        spread += abs(stored) + size
    return other + gamma * total + Fraction(1, 2**1022) * (2 * n + 1 + spread) * (1 + gamma)


def gate_tensors(spec: Specification, cells: Cells) -> dict[str, np.ndarray]:
    """Domain and gate as the format prescribes them."""
    tensors: dict[str, np.ndarray] = {}
    formats = ((BINARY32, "<f4"), (BINARY64, "<f8"))
    used = sorted({row for region in cells.gated for row in cells.regions[region]})
    comparisons = [cells.rows[r] for r in used if len(cells.rows[r].coefficients) == 1]
    oblique = [cells.rows[r] for r in used if len(cells.rows[r].coefficients) > 1]
    for fmt, code in formats:
        for side, ends in (("lower", spec.lower), ("upper", spec.upper)):
            tensors[f"domain.{side}_{fmt.name}"] = np.array([float(nearest(v, fmt)) for v in ends], dtype=code)
        constants = [nearest(row.bound, fmt) for row in comparisons]
        tensors[f"gate.constants_{fmt.name}"] = np.array([float(c) for c in constants], dtype=code)
    coefficients = np.zeros((len(oblique), len(spec.columns)), dtype="<f8")
    for i, row in enumerate(oblique):
        for k, q in row.coefficients:
            coefficients[i, k] = float(nearest(q, BINARY64))
    tensors["gate.coefficients"] = coefficients
    thresholds = [float(round_up(row.bound + slack_of(row, spec), BINARY64)) for row in oblique]
    tensors["gate.thresholds"] = np.array(thresholds, dtype="<f8")
    bits = [[region in cell for region in cells.gated] for cell in cells]
    shape = (len(cells), len(cells.gated))
    tensors["gate.signatures"] = np.array(bits, dtype=np.uint8).reshape(shape)
    return tensors


def weights_of(spec: Specification, cells: Cells, over: FrozenHeads) -> dict[str, np.ndarray]:
    """All tensors of the head; the free head, if there is one, is all ones."""
    tensors = gate_tensors(spec, cells)
    tensors |= {f"bounds.{name}": array for name, array in over.bounds.stored().items()}
    certified = [head for head in over.heads if head is not None]
    m, n = len(spec.targets), over.bounds.width
    tensors["heads.weight"] = np.array([h.W for h in certified], dtype="<f4").reshape(-1, m, n)
    tensors["heads.bias"] = np.array([h.b for h in certified], dtype="<f4").reshape(-1, m)
    if certified and certified[0].V is not None:
        tensors["heads.passthrough"] = np.array([h.V for h in certified], dtype="<f4")
    elif certified and certified[0].fallback is not None:
        tensors["heads.fallback"] = np.array([h.fallback for h in certified], dtype="<f4")
    if cells.free_cell:
        tensors["free.weight"], tensors["free.bias"] = np.ones((m, n), dtype="<f4"), np.ones(m, dtype="<f4")
    return tensors


MODEL_JSON = b'{"format": "smle-model", "version": 1, "kind": "made by hand"}\n'


def issued(spec: Specification, cells: Cells, over: FrozenHeads) -> Package:
    """Let the library prove hand-made heads."""
    weights = weights_of(spec, cells, over)
    files = {"model": MODEL_JSON, "rules": spec.to_yaml().encode()}
    certificate = issue(spec, cells, over, tensors=tensors_of(weights), files=files)
    return Package(copy.deepcopy(certificate.document), weights, certificate.block, files)


def written(
    spec: Specification,
    cells: Cells,
    over: FrozenHeads,
    proofs: Sequence[dict[str, Any]],
    *,
    conflicts: Sequence[dict[str, Any]] = (),
    implications: Sequence[dict[str, Any]] = (),
) -> Package:
    """Write a certificate by hand, with the given proofs; nothing is checked."""
    block = bytearray()
    affine = over.bounds.kind == "affine"
    nan_safe = all(head.fallback is None for head in over.heads if head is not None)
    document: dict[str, Any] = {
        "format": "smle-certificate",
        "version": 2,
        "statement": smle_check.STATEMENT,
        "binds": {},
        "program": {
            "head": "box",
            "precision": "float32",
            "clip": "where" if nan_safe else "clamp",
            "bounds": "affine" if affine else "constant",
        },
        "specification": compiled(spec, cells, block),
        "gate": {"regions": list(cells.gated)},
        "proof": {
            "coverage": {"conflicts": list(conflicts), "implications": list(implications)},
            "obligations": list(proofs),
        },
    }
    files = {"model": MODEL_JSON, "rules": spec.to_yaml().encode()}
    return Package(document, weights_of(spec, cells, over), bytes(block), files).seal()


def clause_proof(weights: Sequence[Any], mu: Sequence[Any] = (), **where: Any) -> dict[str, Any]:
    """One proof entry; head, rule, clause are 0 and region is None unless given."""
    place: dict[str, Any] = {"head": 0, "rule": 0, "region": None, "clause": 0, **where}
    return {**place, "cases": [{"lambda": [str(w) for w in weights], "mu": [[r, str(v)] for r, v in mu]}]}


Choose = Callable[[set[str]], tuple[Any, ...]]


def heads_by_rules(
    spec: Specification, cells: Cells, choose: Choose, *, seed: int = 0, n: int = 3, spread: float = 0.02
) -> list[Head | None]:
    """One head per cell: small random W around the outputs that `choose` names for the active rules.

    `choose(names of active rules)` returns y, or (y, V) with a matrix; clamp programs get y as their fallback.
    """
    rng = np.random.default_rng(seed)
    heads: list[Head | None] = []
    ungated = set(range(len(cells.regions))) - set(cells.gated)
    for index, cell in enumerate(cells):
        if cells.free_cell and index == len(cells) - 1:
            heads.append(None)
            continue
        active = {spec.rules[rule].name for region in (*cell, *ungated) for rule in cells.rules[region]}
        chosen = choose(active)
        W = rng.uniform(-spread, spread, size=(len(spec.targets), n)).astype("f4")
        if isinstance(chosen[0], (int, float)):
            y = np.array(chosen, dtype="f4")
            heads.append(Head(W, y, fallback=y))
        else:
            heads.append(Head(W, np.array(chosen[0], dtype="f4"), V=np.array(chosen[1], dtype="f4")))
    return heads


def unit_box(n: int) -> Bounds:
    return Bounds(-np.ones(n, dtype="f4"), np.ones(n, dtype="f4"))


def without_gate(cells: Cells) -> Cells:
    """One head for all inputs; every rule is proved over its own region."""
    return Cells(cells.rows, cells.regions, cells.rules, (), ((),), (), ())


def of_rules(package: Package) -> tuple[Gate, dict[str, np.ndarray]]:
    """Return the gate of a package, and what is stored of domain and gate, as smle reads them off the rules."""
    spec = Specification.from_yaml(package.files["rules"].decode())
    gated = tuple(package.document["gate"]["regions"])
    active = [tuple(g for g, bit in zip(gated, row, strict=True) if bit) for row in package.weights["gate.signatures"]]
    bare = regions_of(spec)
    return gate_of(spec, Cells(bare.rows, bare.regions, bare.rules, gated, tuple(active), (), ()))


def deployed_head(package: Package) -> Box:
    """Return the program that a package describes, with its weights."""
    stated = package.document["program"]
    return Box(box(of_rules(package)[0], stated["clip"], stated["bounds"], package.weights), package.weights)


# --- The cases. Each is small, hand-made, and accepted. ---------------------------------------------------------

BRAKING = """
inputs: {distance: [0, 200], speed: [0, 40], friction: [0.1, 1]}
outputs: [brake]
rules:
  - {name: emergency, when: distance <= 10 and speed >= 20, then: brake >= 0.8}
  - {name: tailgating, when: distance <= 0.8 * speed - 4, then: brake >= 0.5}
  - {name: phantom, when: distance >= 150 and speed <= 10, then: brake <= 0.1}
  - {name: range, then: 0 <= brake <= 1}
"""

CLAUSES = """
inputs: {a: [-1, 1], b: [0, 0.1]}
outputs: [p, q]
rules:
  - {name: one of them, then: p >= 0 or q >= 0}
  - {name: three, when: a <= 0.3, then: p + q <= 3 or p - q >= 1 or q < -2}
  - {name: implied, when: a <= 0.5, then: p <= 2}
"""

AFFINE = """
inputs: {a: [0, 1], b: [0, 1]}
outputs: [y]
rules:
  - {name: corner, when: a + b <= 1, then: y <= 1.2}
  - {name: other corner, when: a + b >= 1, then: y >= 0.8}
"""

DOSE = """
inputs: {weight: [40, 120], age: [0, 100]}
outputs: [dose]
rules:
  - {name: by weight, then: dose <= 0.5 * weight}
  - {name: old, when: age >= 65, then: dose <= 0.4 * weight or dose <= 10}
  - {name: positive, then: dose >= 0}
"""

ROADS = """
inputs:
  speed: [0, 40]
  road: {categories: [dry, wet, icy]}
outputs: [brake]
rules:
  - {name: icy, when: road == icy, then: brake <= 0.5}
  - {name: wet, when: road == wet, then: brake >= 0.6}
  - {name: not dry and slow, when: road != dry and speed < 20, then: brake >= -2}
"""

STRICT = """
inputs: {speed: [0, 0.7]}
outputs: [y]
rules:
  - {name: slow, when: speed < 0.3, then: y < 0}
  - {name: fast, when: speed >= 0.3, then: y > 0}
"""

LABELS = """
inputs: {a: [0, 1]}
labels: [cat, dog, bird, fish]
rules:
  - {name: one, then: "at_most_one(cat, dog, bird, fish)"}
  - {name: no fish, when: a <= 0.25, then: not fish}
"""


CROSSING = """\
inputs: {a: [-1, 1], b: [-1, 1]}
outputs: [y]
rules:
  - name: top
    when: a + b <= 0.5
    then: y <= 1
"""
LABELS_OF_TWO = """\
inputs: {a: [-1, 1], b: [-1, 1]}
labels: [cat, dog, cow]
rules:
  - {name: one, then: "at_most_one(cat, dog, cow)"}
"""


def braking() -> Package:
    spec = Specification.from_yaml(BRAKING)
    cells = find_cells(spec)

    def choose(active: set[str]) -> tuple[float, ...]:
        return (0.9 if active & {"emergency", "tailgating"} else 0.05 if "phantom" in active else 0.5,)

    return issued(spec, cells, FrozenHeads(unit_box(3), tuple(heads_by_rules(spec, cells, choose))))


def clauses() -> Package:
    """Neither p >= 0 nor q >= 0 holds everywhere: only the mixture of the two proves the clause."""
    spec = Specification.from_yaml(CLAUSES)
    cells = find_cells(spec)
    W = np.array([[1.0, 0.25, 0.0], [-1.0, -0.125, 0.25]], dtype="f4")
    b = np.array([0.5, 0.25], dtype="f4")
    fallback = np.array([0.5, 0.25], dtype="f4")
    heads = tuple(Head(W, b, fallback=fallback) for _ in cells)
    return issued(spec, cells, FrozenHeads(unit_box(3), heads))


def affine(*, gate: bool = True) -> Package:
    """y <= 1.2 where a + b <= 1 needs mu: the bounds follow a + b."""
    spec = Specification.from_yaml(AFFINE)
    cells = find_cells(spec) if gate else without_gate(find_cells(spec))
    slope = np.array([[1.0, 1.0], [0.5, 0.5]], dtype="f4")
    lower, upper = np.array([-0.0625, 0.0], dtype="f4"), np.array([0.0625, 0.125], dtype="f4")
    bounds = Bounds(lower, upper, slope, slope)
    head = Head(np.array([[0.75, 0.5]], dtype="f4"), np.array([0.0], dtype="f4"))
    last = (None,) if cells.free_cell else (head,)
    heads = (head,) * (len(cells) - 1) + last
    return issued(spec, cells, FrozenHeads(bounds, heads))


def dose() -> Package:
    spec = Specification.from_yaml(DOSE)
    cells = find_cells(spec)
    heads = heads_by_rules(spec, cells, lambda active: ([1.0], [[0.3125, 0.0]]))
    return issued(spec, cells, FrozenHeads(unit_box(3), tuple(heads)))


def roads(*, gate: bool = True) -> Package:
    spec = Specification.from_yaml(ROADS)
    cells = find_cells(spec) if gate else without_gate(find_cells(spec))
    if not gate:
        # One head: the output follows the category through the pass-through.
        head = Head(np.full((1, 2), 0.01, "f4"), np.zeros(1, "f4"), V=np.array([[0.0, 0.5, 0.75, 0.25]], "f4"))
        return issued(spec, cells, FrozenHeads(unit_box(2), (head,)))
    heads = heads_by_rules(spec, cells, lambda active: (0.75 if "wet" in active else 0.25,))
    return issued(spec, cells, FrozenHeads(unit_box(3), tuple(heads)))


def strict() -> Package:
    spec = Specification.from_yaml(STRICT)
    cells = find_cells(spec)
    heads = heads_by_rules(spec, cells, lambda active: (-0.5 if "slow" in active else 0.5,))
    return issued(spec, cells, FrozenHeads(unit_box(3), tuple(heads)))


def labels() -> Package:
    spec = Specification.from_yaml(LABELS)
    cells = find_cells(spec)
    rng = np.random.default_rng(1)
    W = rng.uniform(-0.1, 0.1, size=(4, 5)).astype("f4")
    W[:, :4] -= 0.25 * np.eye(4, dtype="f4")
    heads = [
        Head(W, np.array([-0.2, -0.4, -0.6, -0.9], "f4"), fallback=np.array([0.1, -0.4, -0.6, -0.9], "f4"))
        for _ in cells
    ]
    return issued(spec, cells, FrozenHeads(unit_box(5), tuple(heads)))


def affine_labels() -> Package:
    """Exclusions under affine bounds: the slower path of the checker."""
    spec = Specification.from_yaml(LABELS)
    cells = find_cells(spec)
    slope = np.full((2, 1), 0.25, dtype="f4")
    bounds = Bounds(np.zeros(2, "f4"), np.full(2, 0.5, "f4"), slope, 2 * slope)
    head = Head(np.full((4, 2), 0.25, "f4"), np.array([-1, -2, -0.75, -1.5], "f4"))
    return issued(spec, cells, FrozenHeads(bounds, (head,) * len(cells)))


def crossing_bounds() -> Bounds:
    """Three units: two cross in a part of the region a + b <= 1/2, the third one elsewhere only."""
    lower, upper = np.array([-0.375, 0.5, -1.0], "f4"), np.array([-0.25, 0.25, 0.25], "f4")
    lower_slope = np.array([[1.25, 0.0], [0.75, 0.25], [0.75, 0.75]], "f4")
    return Bounds(lower, upper, lower_slope, np.array([[0.5, -0.5], [0.25, -0.5], [0.125, 0.0]], "f4"))


def crossing(margin: float = 2.0**-7) -> Package:
    """y <= 1 where a + b <= 1/2, by a margin: l and u cross there, and only cuts prove it."""
    spec = Specification.from_yaml(CROSSING)
    cells = find_cells(spec)
    bounds, W = crossing_bounds(), np.array([[1.0, 0.75, 0.5]], "f4")
    one = Fraction(1)
    sides = [([one, 0 * one], one), ([-one, 0 * one], one), ([0 * one, one], one), ([0 * one, -one], one)]
    reached = reached_by(bounds, [Fraction(float(v)) for v in W[0]], [*sides, ([one, one], one / 2)])
    bias = 1 - reached - Fraction(margin)
    head = Head(W, np.array([float(bias)], "f4"))
    assert Fraction(float(head.b[0])) == bias
    return issued(spec, cells, FrozenHeads(bounds, (head,) * (len(cells) - 1) + (None,)))


def reached_by(bounds: Bounds, v: list[Fraction], sides: list[tuple[list[Fraction], Fraction]]) -> Fraction:
    """Return the largest v.z over a polygon, with v >= 0: convex in x, so at a corner, where z = max(l, u)."""
    best = []
    for (p, s), (q, t) in itertools.combinations(sides, 2):
        determinant = p[0] * q[1] - p[1] * q[0]
        if determinant:
            x = [(s * q[1] - t * p[1]) / determinant, (t * p[0] - s * q[0]) / determinant]
            if all(side[0] * x[0] + side[1] * x[1] <= bound for side, bound in sides):
                ends = [
                    [Fraction(float(o)) + sum(Fraction(float(c)) * k for c, k in zip(row, x, strict=True))
                     for o, row in zip(*side, strict=True)]
                    for side in ((bounds.lower, bounds.lower_slope), (bounds.upper, bounds.upper_slope))
                ]  # fmt: skip
                best.append(sum(c * max(pair) for c, *pair in zip(v, *ends, strict=True)))
    return max(best)


def crossing_labels() -> Package:
    """Exclusions where bounds cross: weights prove some pairs, cases the others."""
    spec = Specification.from_yaml(LABELS_OF_TWO)
    cells = find_cells(spec)
    W = np.array([[1.0, 0.75, 0.5], [0.75, -1.0, 0.25], [-0.5, 1.0, -0.25]], "f4")
    head = Head(W, np.array([-1.375, -0.875, -1.0], "f4"))
    return issued(spec, cells, FrozenHeads(crossing_bounds(), (head,) * len(cells)))


CASES: dict[str, Callable[[], Package]] = {
    "braking": braking,
    "clauses": clauses,
    "affine": affine,
    "affine without gate": lambda: affine(gate=False),
    "dose": dose,
    "roads": roads,
    "roads without gate": lambda: roads(gate=False),
    "strict": strict,
    "labels": labels,
    "affine labels": affine_labels,
    "crossing": crossing,
    "crossing labels": crossing_labels,
}

_made: dict[str, Package] = {}


def case(name: str) -> Package:
    """Return a fresh copy of a case, made once per session."""
    if name not in _made:
        _made[name] = CASES[name]()
    return _made[name].copy()


def accepted(package: Package) -> bool:
    """Whether the checker accepts; an exception of another kind is a defect, and fails the test."""
    try:
        package.check()
    except smle_check.Rejected:
        return False
    return True
