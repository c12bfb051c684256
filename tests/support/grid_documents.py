"""Certificates of grid heads made by hand, and a judge in Fractions that reads the document alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

import smle_check
from smle.certificates.document import Certificate, arrays_of
from smle.heads.grid.grid_program import GridProgram
from smle_check.floats import BINARY32, BINARY64, Binary, nearest
from smle_check.heads.candidates import gated_regions
from smle_check.heads.grid import check_tensors, domain_tensors, listed_of
from smle_check.heads.steps import Lattice, reading_tensors
from smle_check.stated import StatedLiteral, StatedRow, StatedSpecification

from .builder import Package

KINDS: dict[Any, Binary] = {np.float32: BINARY32, np.float64: BINARY64}


def number(lower: Any, upper: Any, step: Any) -> dict[str, Any]:
    """Return a range and a step; None: a real input."""
    return {"lower": str(lower), "upper": str(upper), "step": None if step is None else str(step)}


def form(*terms: tuple[int, Any]) -> list[list[Any]]:
    return [[k, str(v)] for k, v in terms]


def literal(y: Any, x: Any, bound: Any, *, strict: bool = False) -> dict[str, Any]:
    return {"y": form(*y), "x": form(*x), "bound": str(bound), "strict": strict}


def row(terms: Any, bound: Any, *, strict: bool = False) -> dict[str, Any]:
    return {"terms": form(*terms), "bound": str(bound), "strict": strict}


def package(
    inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], clauses: list[list[dict[str, Any]]],
    *, rows: list[Any] | None = None, regions: list[list[int]] | None = None, one_hot: Any = (), tree: Any = None,
    slope: Any = 0.0, offset: Any = 0.0, proofs: Any = (),
) -> Package:  # fmt: skip
    """Return a document with one rule, of all clauses in all regions, whose other numbers are missing still."""
    regions = regions or [[]]
    leaves = 1 if tree is None else 2
    stated = {
        "inputs": [{"name": f"x{j}", **entry} for j, entry in enumerate(inputs)],
        "one_hot": list(one_hot),
        "outputs": [{"name": f"y{i}", "kind": "number", **entry} for i, entry in enumerate(outputs)],
        "rows": rows or [],
        "regions": regions,
        "rules": [{"name": "r", "regions": list(range(len(regions))), "clauses": clauses, "exclusions": None}],
    }
    document = {
        "format": "smle-certificate",
        "version": smle_check.VERSION,
        "statement": smle_check.statement_of("grid"),
        "program": {"head": "grid", "tree": tree},
        "specification": stated,
        "gate": {"regions": list(range(len(regions)))},
        "proof": {"safe": list(proofs)},
    }
    m, d = len(outputs), len(inputs)
    weights = {
        "check.scale": np.ones(m),
        "safe.slope": np.broadcast_to(np.asarray(slope, dtype=np.float64), (leaves, m, d)).copy(),
        "safe.offset": np.broadcast_to(np.asarray(offset, dtype=np.float64), (leaves, m)).copy(),
    }
    return Package(document, weights)


def prescribed(made: Package) -> Package:
    """Put in the numbers that the format prescribes."""
    stated = StatedSpecification(made.document["specification"], made.block)
    spec, gated = Lattice.read(stated), gated_regions(stated)
    tensors = domain_tensors(stated) | reading_tensors(spec, gated) | check_tensors(spec, listed_of(spec))
    made.weights |= {name: array.copy() for name, array in arrays_of(tensors).items()}
    return made


def served(made: Package, X: np.ndarray, answers: np.ndarray | None) -> np.ndarray:
    """Return what the program of a package serves, without asking the checker; without answers, the safe ones."""
    program = GridProgram(Certificate(made.text, made.block, made.tensors, made.files))
    if answers is not None:
        return program(X, answers)
    return program.values(
        program.safe(program.read(X), program.bits_of(X) if made.weights["gate.rows"].size else None, len(X))
    )


def broken(made: Package, X: np.ndarray, y: np.ndarray) -> list[int]:
    """Return the rows whose answers break the document: not in steps, out of range, or against a rule that is on."""
    spec = StatedSpecification(made.document["specification"], made.block)
    return [n for n in range(len(X)) if not _obeys(spec, X[n], y[n], KINDS[X.dtype.type])]


def _obeys(spec: StatedSpecification, x: np.ndarray, y: np.ndarray, fmt: Binary) -> bool:
    if not np.isfinite(y).all():
        return False
    values = []
    for value, own in zip(y.tolist(), spec.output_steps, strict=True):
        multiple = round(Fraction(value) / own.step) * own.step
        if nearest(multiple, BINARY32) != Fraction(value) or not own.lower <= multiple <= own.upper:
            return False
        values.append(multiple)
    read = []
    for value, step in zip(map(Fraction, map(float, x)), spec.input_steps, strict=True):
        if step is None:
            read.append(value if abs(value) >= Fraction(1, 2**100) else Fraction(0))
        else:
            read.append(round(value / step) * step)

    def inside(one: StatedRow) -> bool:
        total, bound = sum(v * read[j] for j, v in one.terms.items()), one.bound
        if len(one.terms) == 1 and spec.input_steps[next(iter(one.terms))] is None:
            bound = nearest(bound, fmt)
        return total < bound if one.strict else total <= bound

    def holds(one: StatedLiteral) -> bool:
        total = sum(v * values[i] for i, v in one.y.items()) + sum(v * read[j] for j, v in one.x.items())
        return total < one.bound if one.strict else total <= one.bound

    for rule in spec.rules:
        is_on = any(all(inside(spec.rows[r]) for r in spec.regions[g]) for g in rule.regions)
        if is_on and not all(any(holds(one) for one in clause) for clause in rule.clauses):
            return False
    return True


def hard_points(made: Package, rng: np.random.Generator, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield inputs in both formats, at ends, on and next to bounds of rows, and answers near and far; some are NaN."""
    spec = StatedSpecification(made.document["specification"], made.block)
    bounds = [float(one.bound) for one in spec.rows if abs(one.bound) < 2**60]
    for dtype in KINDS:
        X = np.zeros((rows, len(spec.inputs)), dtype=dtype)
        for j, step in enumerate(spec.input_steps):
            low, high = spec.lower[j], spec.upper[j]
            if step is not None:
                first, last = math.ceil(low / step), math.floor(high / step)
                k = [rng.choice([first, last, *rng.integers(first, last + 1, 4).tolist()]) for _ in range(rows)]
                X[:, j] = [float(nearest(int(v) * step, KINDS[dtype])) for v in k]
                continue
            ends = np.array([low, high], dtype=np.float64)
            x = np.where(rng.random(rows) < 0.6, rng.uniform(*ends, rows), rng.choice([*ends, *bounds, 0.0], rows))
            X[:, j] = np.clip(np.nextafter(x, rng.choice([-np.inf, 0, np.inf], rows)), *ends).astype(dtype)
        for group in spec.groups:
            X[:, group] = np.eye(len(group))[rng.integers(0, len(group), rows)]
        low, high = (np.array([float(getattr(o, side)) for o in spec.output_steps]) for side in ("lower", "upper"))
        answers = rng.uniform(low - 0.1 * (high - low) - 1, high + 0.1 * (high - low) + 1, (rows, len(low)))
        odd = rng.random(answers.shape) < 0.05
        yield X, np.where(odd, rng.choice([np.nan, np.inf, -np.inf], answers.shape), answers).astype(np.float32)
