"""Writes the numbers and answers of golden models beside their rules.

    PYTHONPATH=.:tests python tests/golden/make.py [name ...]

Answers are computed here in rationals, by the text of docs/certificate-format.md, not by the program. Margins are what
the checker grants the rounding of each head, and, behind a backbone, what rounding can do to the embedding, by the same
bound. `test_golden.py` asks NumPy, torch and onnxruntime for the same.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import smle_check
from smle import correct
from smle.heads.box.network.assurance import certify
from smle.networks.units import DataScale
from smle.nn import BoxNetwork
from smle.rules import Categorical, Row, Specification
from smle.tables import encode_inputs
from smle_check.floats import affine_error, upward
from smle_check.heads.box import ExactBounds, ExactHead, Hidden
from support.golden_models import FOLDER, Arrays, Golden, Rows, active_regions, built, layers

ZERO = Fraction(0)


@dataclass(frozen=True)
class Plan:
    """How a network is made for the rules of a folder: its bounds, or `corrected`."""

    bounds: str
    options: dict[str, bool] = field(default_factory=dict)
    embedding: int = 5


UNGATED = {"gate": False}
PLANS = {
    "everywhere": Plan("constant"),
    "one-region": Plan("constant"),
    "many-comparisons": Plan("fixed"),
    "cells": Plan("fixed"),
    "oblique": Plan("constant"),
    "no-gate": Plan("constant", UNGATED),
    "affine": Plan("affine"),
    "affine-no-gate": Plan("affine", UNGATED),
    "network": Plan("network", embedding=3),
    "moving-limits": Plan("fixed"),
    "labels": Plan("fixed"),
    "table": Plan("constant", embedding=6),
    "corrected": Plan("corrected"),
    "corrected-labels": Plan("corrected"),
}


# --- Networks and their numbers


def network_of(plan: Plan, spec: Specification) -> BoxNetwork:
    """Return a network that is safe and not at rest."""
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    d, m = len(low), len(spec.targets)
    torch.manual_seed(7)
    if plan.bounds == "corrected":
        model = nn.Sequential(nn.Linear(d, 6), nn.ReLU(), nn.Linear(6, m))
        return correct(model, spec, torch.rand(200, d) * 2 - 1)
    backbone = nn.Sequential(nn.Linear(d, 6), nn.ReLU(), nn.Linear(6, plan.embedding))
    with torch.no_grad():  # inputs in units of their ranges
        backbone[0].weight.mul_(torch.from_numpy(3 / (high - low)).float())
        backbone[0].bias.sub_(backbone[0].weight @ torch.from_numpy((low + high) / 2).float())
    frame = DataScale((low + high) / 2, (high - low) / 3, np.full(m, 0.3), np.full(m, 0.7))
    network = BoxNetwork(backbone, spec, embedding=plan.embedding, bounds=plan.bounds, frame=frame, **plan.options)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not name.startswith("backbone"):
                parameter.add_(0.5 * torch.randn_like(parameter))
    return network.eval()


def tensors_of(network: BoxNetwork, spec: Specification) -> Arrays:
    """Return the learned numbers by the names of golden.py."""
    tensors: Arrays = {}
    stack = [(m.weight.double(), m.bias.double()) for m in network.backbone.modules() if isinstance(m, nn.Linear)]
    rescale = getattr(network.backbone, "rescale", None)
    if rescale is not None:
        weight, bias = stack[-1]
        scale, shift = rescale.scale.double(), rescale.shift.double()
        stack[-1] = weight * scale[:, None], bias * scale + shift
    if sum(isinstance(m, nn.ReLU) for m in network.backbone.modules()) < len(stack) - 1:  # no ReLU before the last
        (weight, bias), (first, offset) = stack.pop(), stack.pop()
        stack.append((weight @ first, bias + weight @ offset))
    for i, pair in enumerate(stack):
        for name, value in zip(("weight", "bias"), pair, strict=True):
            tensors[f"backbone.{i}.{name}"] = value.detach().float().numpy()
    over = network.frozen_heads()
    tensors |= over.stored()
    if network.cells.gated:
        tensors["heads.at"] = np.stack(
            [witness(network, spec, cell) for cell, head in enumerate(over.heads) if head is not None]
        )
    return {name: np.ascontiguousarray(value, dtype=value.dtype) for name, value in tensors.items()}


# --- Rows


def inputs(spec: Specification, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return random inputs of the domain (count, d): whole numbers whole, one category of each."""
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    x = rng.uniform(low, high, (count, len(low)))
    k = 0
    for item in spec.inputs:
        width = len(item.categories) if isinstance(item, Categorical) else 1
        if isinstance(item, Categorical):
            x[:, k : k + width] = np.eye(width)[rng.integers(width, size=count)]
        elif item.integer:
            x[:, k] = np.round(x[:, k])
        k += width
    return x


def on_borders(network: BoxNetwork, spec: Specification, kind: type, rng: np.random.Generator) -> list[np.ndarray]:
    """Return inputs at and beside each border, where the other conditions of the region hold."""
    found: list[np.ndarray] = []
    fixed = {k for group in spec.one_hot for k in group}
    near = inputs(spec, 4000, rng).astype(kind)
    for row in network.cells.rows:
        places = [k for k, _ in row.coefficients]
        if fixed.intersection(places):
            continue
        region = next(r for r in network.cells.regions if network.cells.rows.index(row) in r)
        others = [network.cells.rows[i] for i in region if network.cells.rows[i] != row]
        members = [x for x in near if all(inside(x, other, fixed) for other in others)]
        if len(places) == 1:
            ((k, sign),) = row.coefficients
            bound = kind(float(row.bound * sign))
            values = [bound, np.nextafter(bound, kind(np.inf)), np.nextafter(bound, kind(-np.inf))]
            if bound == 0:  # neighbors of zero are subnormal: beyond what is promised of runtimes
                tiny = np.finfo(kind).tiny
                values = [bound, kind(-0.0), tiny, -tiny]
            for value in values:
                x = members.pop().copy()
                x[k] = value
                found.append(x)
        else:  # exact points of the border have few digits
            for x in members:
                x = np.round(x * 16) / 16
                k, q = row.coefficients[0]
                rest = sum(v * Fraction(float(x[i])) for i, v in row.coefficients[1:])
                goal = (row.bound - rest) / q
                for step in (Fraction(0), Fraction(1, 10**4), -Fraction(1, 10**4)):
                    moved = x.copy()
                    moved[k] = kind(float(goal + step))
                    on_border = step or Fraction(float(moved[k])) == goal
                    if (
                        on_border
                        and abs(moved[k]) <= spec.upper[k]
                        and all(inside(moved, other, fixed) for other in others)
                    ):
                        found.append(moved)
                if len(found) > 40:
                    break
    return found


def inside(x: np.ndarray, row: Row, categories: set[int]) -> bool:
    """Whether an input is well inside a half-space; of categories there are no two degrees."""
    excess = float(sum(Fraction(float(x[k])) * q for k, q in row.coefficients) - row.bound)
    return excess <= 0 if categories.intersection(k for k, _ in row.coefficients) else excess < -0.01


def ends(spec: Specification) -> list[np.ndarray]:
    """Return corners of the domain, and points beyond it."""
    low, high = (np.array([float(v) for v in side]) for side in (spec.lower, spec.upper))
    rng = np.random.default_rng(3)
    found = []
    for beyond in (0.0, 0.5, 1e30):
        for _ in range(3):
            x = inputs(spec, 1, rng)[0]
            for k in range(len(low)):
                if any(k in group for group in spec.one_hot):
                    continue
                x[k] = low[k] - beyond if rng.random() < 0.5 else high[k] + beyond
            found.append(x)
    return found


def witness(network: BoxNetwork, spec: Specification, cell: int) -> np.ndarray:
    """Return an input of a cell in float64; cells where regions touch have borders only."""
    rng = np.random.default_rng(cell)
    regions = network.cells[cell]
    candidates = [inputs(spec, 20000, rng)]
    for row in network.cells.rows:
        if len(row.coefficients) == 1:
            ((k, sign),) = row.coefficients
            candidates.append(inputs(spec, 500, rng))
            candidates[-1][:, k] = float(row.bound * sign)
    for x in np.concatenate(candidates):
        if active_regions(network.cells, x) == regions:
            return x
    raise ValueError(f"no input found for cell {cell}")


def embeddings(tensors: Arrays, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return embeddings in and around the box (count, n)."""
    return (1.2 * rng.normal(size=(count, len(tensors["bounds.lower"])))).astype(np.float32)


HOSTILE = (np.nan, np.inf, -np.inf, 3e38, -3e38)


def hostile(tensors: Arrays) -> np.ndarray:
    """Return embeddings with NaN and infinities (10, n)."""
    z = embeddings(tensors, 2 * len(HOSTILE), np.random.default_rng(5))
    for i, value in enumerate(HOSTILE):
        z[i, i % z.shape[1]] = value
        z[len(HOSTILE) + i] = value
    return z


# --- Exact answers and their margins


def fractions(array: np.ndarray) -> list[Fraction]:
    return [Fraction(float(v)) for v in array]


def through(stack: Sequence[tuple[np.ndarray, np.ndarray]], v: list[Fraction], *, last: bool) -> tuple[list, list]:
    """Return the values behind dense layers, ReLU between them (and after the last), and bounds of their errors."""
    errors = [ZERO] * len(v)
    for i, (weight, bias) in enumerate(stack):
        values, off = [], []
        sizes = [abs(a) + e for a, e in zip(v, errors, strict=True)]
        for row, b in zip(weight, bias, strict=True):
            w, c = fractions(row), Fraction(float(b))
            value = sum((x * y for x, y in zip(w, v, strict=True)), c)
            inherited = sum((abs(x) * e for x, e in zip(w, errors, strict=True)), ZERO)
            relu = last or i < len(stack) - 1
            values.append(max(value, ZERO) if relu else value)
            off.append(affine_error(w, grid(sizes), c, "layer") + inherited)
        v, errors = values, off
    return v, errors


def grid(sizes: list[Fraction]) -> list[Fraction]:
    """Return sizes that are not smaller, as the checker wants them."""
    return [upward(v) for v in sizes]


class Oracle:
    """The deployed program in rationals."""

    def __init__(self, golden: Golden, network: BoxNetwork) -> None:
        self.spec, self.tensors, self.cells = golden.spec, golden.tensors, network.cells
        certificate = certify(network)
        stated = smle_check.StatedSpecification(certificate.document["specification"], certificate.block)
        kind = certificate.document["program"]["bounds"]
        hidden = None
        for layer in layers(self.tensors, "bounds.hidden"):
            slopes = (0.0, 1.0) * len(layer[1])
            exact = [fractions(row) for row in layer[0]], fractions(layer[1])
            hidden = Hidden(exact, (stated.low, stated.high), slopes, hidden)
        bounds = ExactBounds(stated, certificate.tensors, kind, hidden)
        self.rng = np.random.default_rng(23)
        self.granted = []  # the checker's error bound of each output, per head
        for i, weight in enumerate(self.tensors["heads.weight"]):
            V = self.tensors["heads.passthrough"][i].ravel() if "heads.passthrough" in self.tensors else np.zeros(0)
            flat = (fractions(part) for part in (weight.ravel(), V, self.tensors["heads.bias"][i]))
            self.granted.append(ExactHead(stated, bounds, *flat).errors)

    def cell(self, x: np.ndarray) -> int:
        """Return the number of the head that serves an input, -1 for the free one."""
        if "heads.at" not in self.tensors:
            return 0
        regions = active_regions(self.cells, x)
        for i, at in enumerate(self.tensors["heads.at"]):
            if active_regions(self.cells, at) == regions:
                return i
        return -1

    def clamped(self, x: np.ndarray) -> np.ndarray:
        low, high = (np.array([float(v) for v in side]).astype(x.dtype) for side in (self.spec.lower, self.spec.upper))
        return np.clip(x, low, high)

    def box(self, x32: np.ndarray) -> list[tuple[Fraction, Fraction, Fraction]]:
        """Return (lower, upper, error) per unit of the embedding."""
        lower, upper = (fractions(self.tensors[f"bounds.{side}"]) for side in ("lower", "upper"))
        if "bounds.lower_slope" not in self.tensors:
            return [(a, b, ZERO) for a, b in zip(lower, upper, strict=True)]
        stack = list(layers(self.tensors, "bounds.hidden"))
        sides = []
        for side in ("lower", "upper"):
            last = self.tensors[f"bounds.{side}_slope"], self.tensors[f"bounds.{side}"]
            sides.append(through([*stack, last], fractions(x32), last=False))
        (low, low_error), (high, high_error) = sides
        return [(a, b, max(e, f)) for a, b, e, f in zip(low, high, low_error, high_error, strict=True)]

    def answer(
        self, x: np.ndarray, z: list[Fraction | float], error: list[Fraction], cell: int
    ) -> tuple[list[Fraction], list[Fraction]]:
        """Return the exact outputs of a head, and how far rounding may move them."""
        m = self.tensors["heads.weight"].shape[1]
        x32 = x.astype(np.float32)
        if cell < 0:
            weight, bias, V = self.tensors["free.weight"], self.tensors["free.bias"], None
            clipped, moved = z, error
        else:
            weight, bias = self.tensors["heads.weight"][cell], self.tensors["heads.bias"][cell]
            V = self.tensors["heads.passthrough"][cell] if "heads.passthrough" in self.tensors else None
            if "heads.fallback" in self.tensors and any(math.isnan(v) for v in z):
                return fractions(self.tensors["heads.fallback"][cell]), [ZERO] * m
            clipped, moved = [], []
            for v, e, (low, high, off) in zip(z, error, self.box(x32), strict=True):
                lowered = v if v <= high else high
                clipped.append(lowered if lowered >= low else low)
                moved.append(max(e, off))
        values, margins = [], []
        for i in range(m):
            w, b = fractions(weight[i]), Fraction(float(bias[i]))
            value = sum((p * q for p, q in zip(w, clipped, strict=True)), b)
            if V is not None:
                value += sum((p * q for p, q in zip(fractions(V[i]), fractions(x32), strict=True)), ZERO)
            if cell < 0:
                sizes = grid([abs(v) + e for v, e in zip(clipped, moved, strict=True)])
                own = affine_error(w, sizes, b, "free head")
            else:
                own = self.granted[cell][i]
            values.append(value)
            margins.append(own + sum((abs(p) * e for p, e in zip(w, moved, strict=True)), ZERO))
        return values, margins

    def rows(self, features: np.ndarray, embedding: np.ndarray | None, borders: frozenset[int] = frozenset()) -> Rows:
        """Return rows with their answers; rows of the free cell with a hostile embedding are left out."""
        kept, answers, margins = [], [], []
        for i, x in enumerate(features):
            inner = self.clamped(x)
            cell = self.cell(inner)
            self.require_clear(inner)
            if embedding is None:
                z, error = through(list(layers(self.tensors, "backbone")), fractions(x.astype(np.float32)), last=False)
            else:
                z = [Fraction(float(v)) if math.isfinite(v) else float(v) for v in embedding[i]]
                error = [ZERO] * len(z)
                if cell < 0 and not np.all(np.abs(embedding[i]) < 1e30):
                    continue
            values, off = self.answer(inner, z, error, cell)
            while i in borders and not self.tells(inner, z, error, (cell, values, off)):
                embedding[i] = embeddings(self.tensors, 1, self.rng)[0]
                z = fractions(embedding[i])
                values, off = self.answer(inner, z, error, cell)
            kept.append(i)
            answers.append([float(v) for v in values])
            # Rounded up, with what the answer lost when it became a float64.
            margins.append([
                np.nextafter(float(e + abs(v - Fraction(float(v)))), np.inf) if e else 0.0
                for v, e in zip(values, off, strict=True)
            ])  # fmt: skip
        return Rows(
            features[kept], None if embedding is None else embedding[kept], np.array(answers), np.array(margins)
        )

    def require_clear(self, x: np.ndarray) -> None:
        """Require that an input is not in the slack beyond an oblique border: there either head may serve."""
        for row in self.cells.rows:
            if len(row.coefficients) > 1:
                excess = sum(Fraction(float(x[k])) * q for k, q in row.coefficients) - row.bound
                scale = sum(abs(q) * max(abs(self.spec.lower[k]), abs(self.spec.upper[k])) for k, q in row.coefficients)
                assert excess <= 0 or excess > scale * 2**-20, "in the slack of an oblique border"

    def tells(self, x: np.ndarray, z: list, error: list, own: tuple[int, list[Fraction], list[Fraction]]) -> bool:
        """Whether every other head would answer differently, so that the answer tells which one served."""
        for cell in [*range(len(self.granted)), *([-1] if "free.weight" in self.tensors else [])]:
            values, off = self.answer(x, z, error, cell)
            apart = zip(values, off, own[1], own[2], strict=True)
            if cell != own[0] and not any(abs(a - b) > e + f for a, e, b, f in apart):
                return False
        return True


# --- Files


def made(name: str, plan: Plan) -> Golden:
    """Return a golden model with all its rows."""
    rules, table = FOLDER / name / "rules.yaml", FOLDER / name / "table.csv"
    stored = FOLDER / name / "model.safetensors"
    if stored.exists():  # numbers that were drawn once stay; delete the file for others
        tensors = load_file(stored)
    else:
        network = network_of(plan, Specification.from_yaml(rules.read_text()))
        tensors = tensors_of(network, network.spec)
    golden = Golden(rules.read_text(), tensors, {}, pd.read_csv(table) if table.exists() else None)
    network = built(golden, with_backbone=False)
    oracle, spec, rng = Oracle(golden, network), golden.spec, np.random.default_rng(11)
    served = golden.tensors.get("heads.at", inputs(spec, 1, rng))
    bad = np.tile(hostile(golden.tensors), (len(served), 1))
    for kind in (np.float32, np.float64):
        borders = on_borders(network, spec, kind, rng)
        calm = [*borders, *ends(spec), *inputs(spec, 20, rng)]
        x = np.concatenate([np.stack(calm), np.repeat(served, len(bad) // len(served), axis=0)]).astype(kind)
        z = np.concatenate([embeddings(golden.tensors, len(calm), rng), bad])
        golden.rows[np.dtype(kind).name] = oracle.rows(x, z, frozenset(range(len(borders))))
    x = np.stack([*inputs(spec, 20, rng), *ends(spec)[:6]]).astype(np.float32)
    golden.rows["backbone"] = oracle.rows(x, None)
    if golden.table is not None:
        golden.rows["table"] = oracle.rows(encode_inputs(spec, golden.table), None)
    return golden


def write(name: str, golden: Golden) -> None:
    """Write the learned numbers and the rows into a folder."""
    folder = FOLDER / name
    save_file(golden.tensors, folder / "model.safetensors")
    rows: Arrays = {}
    for group, own in golden.rows.items():
        parts = vars(own) if group != "table" else {"answers": own.answers, "margins": own.margins}
        rows |= {f"{group}.{part}": value for part, value in parts.items() if value is not None}
    save_file({k: np.ascontiguousarray(v) for k, v in rows.items()}, folder / "rows.safetensors")


if __name__ == "__main__":
    for name, plan in PLANS.items():
        if name in (sys.argv[1:] or PLANS):
            golden = made(name, plan)
            write(name, golden)
            heads, free = len(golden.tensors["heads.weight"]), "free.weight" in golden.tensors
            print(f"{name}: {heads} heads, free {free}, {sum(len(rows.answers) for rows in golden.rows.values())} rows")
