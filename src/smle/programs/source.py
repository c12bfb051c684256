"""Prints a program as a Python function: of plain numbers for a few rows, of NumPy columns for many.

Calls cost more than arithmetic here. A printed function names every constant and value, and does nothing else. Both
kinds compute in float64, where every float32 number is exact, and cast once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from smle_check.heads.sums import WIDE
from smle_check.program import Gate, Op, Stage

__all__ = ["Columns", "Function", "PrintedRows", "columns_read", "joined"]

Array = npt.NDArray[Any]
Function = Callable[[Array, Array], Array]
_LONG = 500  # operands of one expression
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_FEW_LIMITS = 8  # up to this many limits are printed one by one


Groups = Sequence[Sequence[int]]
"""The columns of each one-hot group."""


def joined(texts: Sequence[str], word: str) -> str:
    """Join operands with an operator, in groups: Python cannot parse deep nesting."""
    while len(texts) > _LONG:
        texts = [f"({word.join(texts[i : i + _LONG])})" for i in range(0, len(texts), _LONG)]
    return word.join(texts)


def columns_read(ops: Sequence[Op], tensors: Mapping[str, Array]) -> list[int]:
    """Return the input columns that some comparison or sum reads."""
    return sorted(_columns_compared(ops) | _columns_summed(ops, tensors))


def _columns_compared(ops: Sequence[Op]) -> set[int]:
    return {c.column for op in ops if op.kind == "active" for c in op.fixed.comparisons}


def _columns_summed(ops: Sequence[Op], tensors: Mapping[str, Array]) -> set[int]:
    sums = {str(n) for op in ops for n in op.args if n == "gate.coefficients" or (n or "").endswith("_slope")}
    return {int(k) for name in sums for k in np.flatnonzero(np.any(tensors[name], axis=0))}


class _Printer:
    """What both kinds of printed functions share. Values are numbered: inputs x0, x1, ..., outputs q0, bits b0, ...

    Operators work for numbers and arrays alike. Signs go into constants, never inputs: a product may flush small
    numbers to zero. There is no NaN after `clamp` and `within`, so `<` is the opposite of `>=`.

    Exactly one column of a one-hot group is 1, so a sum over the group is looked up by the position of the 1. If the
    columns hold anything else, the sum is still one of its terms.
    """

    word = ""  # joins truth values
    start, body, end = "", "", ""

    def __init__(self, ops: Sequence[Op], tensors: Mapping[str, Array], fmt: str, groups: Groups = ()) -> None:
        self.ops, self.tensors, self.fmt = ops, tensors, fmt
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"float32": _FLOAT32, "float64": _FLOAT64}
        ends = [(group[0], len(group)) for group in groups if [*group] == [*range(group[0], group[0] + len(group))]]
        self.group = {k: start for start, count in ends for k in range(start, start + count)}
        summed = {*_columns_summed(ops, tensors), *self.read_later()}
        self.looked_up = {start: count for start, count in ends if not summed.isdisjoint(range(start, start + count))}
        self.summed = sorted(k for k in summed if k not in self.group)
        self.read = sorted({*_columns_compared(ops), *self.summed})
        self.always: set[int] = set()  # regions
        for op in ops:
            getattr(self, op.kind)(op)

    def read_later(self) -> list[int]:
        """Return further input columns that are read after the operations."""
        return []

    def function(self) -> Function:
        """Compile the printed function: (features, answer) -> answers."""
        body = [self.body + line for line in self.lines]
        text = "\n".join(["def program(features, answer):", self.start, *body, self.end])
        exec(compile(text, "<program of a head>", "exec"), self.names)  # noqa: S102 - nothing in it but numbers
        return self.names["program"]  # type: ignore[no-any-return]

    def stored(self, name: str | None) -> list[Any]:
        """Return a tensor as Python numbers, or [] for None."""
        return [] if name is None else self.tensors[name.replace("_F", f"_{self.fmt}")].tolist()

    def number(self, value: float) -> str:
        """Print a constant."""
        return repr(value)

    def total(self, factors: Sequence[float], offset: float | None = None) -> str:
        """Print a sum."""
        terms = self.terms(factors)
        return joined(terms + ([] if (offset is None and terms) else [self.number(offset or 0.0)]), " + ")

    def terms(self, factors: Sequence[float]) -> list[str]:
        """Print the terms of a sum over the inputs."""
        used = [k for k, v in enumerate(factors) if v]
        found = [f"{self.number(factors[k])} * x{k}" for k in used if k not in self.group]
        for start in sorted({self.group[k] for k in used if k in self.group}):
            name = f"t{len(self.names)}"
            self.names[name] = self.table(factors[start : start + self.looked_up[start]])
            found.append(f"{name}[j{start}]")
        return found

    def table(self, values: Sequence[float]) -> Any:
        """Return a list to look numbers up by position."""
        return list(values)

    def wide(self, op: Op) -> None:
        """Do nothing: numbers are wide already."""

    def active(self, op: Op) -> None:
        gate: Gate = op.fixed
        constants, coefficients, thresholds = (self.stored(name) for name in op.args[2:])
        holds = []
        for (column, negative, strict), constant in zip(gate.comparisons, constants, strict=True):
            holds.append(self.comparison(column, negative, strict, -constant if negative else constant))
        for row, threshold in zip(coefficients, thresholds, strict=True):  # each sum is evaluated once
            self.lines.append(f"h{len(holds)} = {self.total(row)} <= {self.number(threshold)}")
            holds.append(f"h{len(holds)}")
        for region, rows in enumerate(gate.members):
            if rows:
                self.lines.append(f"b{region} = {joined([holds[row] for row in rows], self.word)}")
            else:
                self.always.add(region)

    def comparison(self, column: int, above: bool, strict: bool, constant: float) -> str:
        """Print a comparison of an input."""
        return f"(x{column} {'>' if above else '<'}{'' if strict else '='} {self.number(constant)})"

    def raise_to(self, op: Op) -> None:
        self.stage(op, "<")

    def lower_to(self, op: Op) -> None:
        self.stage(op, ">")

    def stage(self, op: Op, beyond: str) -> None:
        fixed: Stage = op.fixed
        values, slopes = self.stored(op.args[2]), self.stored(op.args[4])
        done = set() if slopes else self.constant_limits(fixed, values, beyond)
        for i, (bit, output) in enumerate(zip(fixed.bits, fixed.outputs, strict=True)):
            if i in done:
                continue
            on = None if bit in self.always else f"b{bit}"
            if slopes:
                self.move(f"q{output}", beyond, on, self.total(slopes[i], values[i]))
            else:
                self.move(f"q{output}", beyond, on, None, self.number(values[i]))

    def constant_limits(self, stage: Stage, values: Sequence[float], beyond: str) -> set[int]:
        """Print constant limits that are always active in one go, and return which."""
        return set()

    def move(self, q: str, beyond: str, on: str | None, formula: str | None, limit: str = "v") -> None:
        raise NotImplementedError


def _place(x: list[float], start: int, stop: int) -> int:
    """Return the position of the 1 among some inputs, or 0."""
    try:
        return x.index(1.0, start, stop) - start
    except ValueError:
        return 0


class PrintedRows(_Printer):
    """A function printed row by row, in Python floats. A sum is computed only if its limit is active."""

    word = " and "
    start = "    served = []\n    for x, q in zip(features.tolist(), answer.tolist()):"
    body = " " * 8

    def clamp(self, op: Op) -> None:
        """Read the inputs, clamped to the domain."""
        lower, upper = (self.stored(name) for name in op.args[1:])
        self.names["place"] = _place
        self.lines += [f"j{start} = place(x, {start}, {start + count})" for start, count in self.looked_up.items()]
        for k in self.read:
            self.lines += [
                f"x{k} = x[{k}]",
                f"if not x{k} >= {lower[k]!r}: x{k} = {lower[k]!r}",
                f"elif x{k} > {upper[k]!r}: x{k} = {upper[k]!r}",
            ]

    def within(self, op: Op) -> None:
        """Read the answers; use the default for those out of bounds."""
        default = self.stored(op.args[1])
        self.lines.append("".join(f"q{i}, " for i in range(len(default))) + "= q")
        wide = float(WIDE)
        self.lines += [f"if not -{wide!r} <= q{i} <= {wide!r}: q{i} = {v!r}" for i, v in enumerate(default)]

    def move(self, q: str, beyond: str, on: str | None, formula: str | None, limit: str = "v") -> None:
        """Move one output to an active limit, if it is beyond it."""
        if formula is not None:
            self.lines.append(f"if {on}: v = {formula}" if on else f"v = {formula}")
        self.lines.append(f"if {f'{on} and ' if on else ''}{q} {beyond} {limit}: {q} = {limit}")

    def narrow(self, op: Op) -> None:
        """Append the row to the answers."""
        outputs = len(self.tensors["clips.default"])
        self.lines.append(f"served.append(({''.join(f'q{i}, ' for i in range(outputs))}))")
        self.names["array"] = np.array
        self.end = "    return array(served, dtype=float32)"


class Columns(_Printer):
    """A function printed column by column, in NumPy. Constants are arrays, which NumPy reads faster than numbers."""

    word = " & "
    body = " " * 4

    def table(self, values: Sequence[float]) -> Any:
        """Return an array to look numbers up by position."""
        return np.array(values, dtype=_FLOAT64)

    def number(self, value: float) -> str:
        """Name a constant."""
        name = f"c{len(self.names)}"
        self.names[name] = np.array(value, dtype=_FLOAT64)
        return name

    def clamp(self, op: Op) -> None:
        """Read the inputs, clamped to the domain.

        Inputs that are only compared with constants inside the domain are not clamped: beyond its ends nothing changes.
        """
        lower, upper = (self.stored(name) for name in op.args[1:])
        self.as_given = set(self.read).difference(self.summed)
        for gate in (other for other in self.ops if other.kind == "active"):
            for (k, negative, strict), constant in zip(gate.fixed.comparisons, self.stored(gate.args[2]), strict=True):
                c = -constant if negative else constant
                # x >= c and its opposite x < c; or x > c and its opposite x <= c.
                if not (lower[k] < c <= upper[k] if negative != strict else lower[k] <= c < upper[k]):
                    self.as_given.discard(k)
        for start, count in self.looked_up.items():
            self.lines.append(f"j{start} = features[:, {start}:{start + count}].argmax(axis=1)")
        self.lines += [f"x{k} = features[:, {k}]" for k in sorted(self.as_given)]
        clamped = [k for k in self.read if k not in self.as_given]
        self.names |= {"fmax": np.fmax, "fmin": np.fmin}  # these ignore NaN
        whole = len(clamped) > 2
        if whole:
            self.lines.append("x = features.T.astype(float64, order='C')")
        for k in clamped:
            column = f"x[{k}]" if whole else f"features[:, {k}].astype(float64)"
            self.lines.append(f"x{k} = fmin(fmax({column}, {self.number(lower[k])}), {self.number(upper[k])})")

    def comparison(self, column: int, above: bool, strict: bool, constant: float) -> str:
        """Print a comparison of an input; NaN counts as the lower end."""
        if column not in self.as_given:
            return super().comparison(column, above, strict, constant)
        name = f"c{len(self.names)}"
        self.names[name] = np.array(constant, dtype=self.fmt)
        if above:
            return f"(x{column} {'>' if strict else '>='} {name})"
        return f"~(x{column} {'>=' if strict else '>'} {name})"

    def within(self, op: Op) -> None:
        """Read the answers; use the default for those out of bounds."""
        default = np.array(self.stored(op.args[1]))[:, None]
        self.names |= {"where": np.where, "default": default, "wide": float(WIDE), "square": float(WIDE**2)}
        self.lines += [
            "q = answer.T.astype(float64, order='C')",
            "flat = q.ravel()",  # no square exceeds the sum of all, so one product finds values out of bounds
            "if not flat.dot(flat) <= square: q = where(abs(q) <= wide, q, default)",
        ]
        limited = sorted({i for other in self.ops if isinstance(other.fixed, Stage) for i in other.fixed.outputs})
        self.lines += [f"q{i} = q[{i}]" for i in limited]

    def constant_limits(self, stage: Stage, values: Sequence[float], beyond: str) -> set[int]:
        """Print the tightest constant limits that are always active as one operation, if these are many."""
        done = {i for i, bit in enumerate(stage.bits) if bit in self.always}
        if len(done) <= _FEW_LIMITS:
            return set()
        tighter = max if beyond == "<" else min
        tightest: dict[int, float] = {}
        for i in done:
            output = stage.outputs[i]
            tightest[output] = tighter(values[i], tightest.get(output, values[i]))
        places, limits = f"i{len(self.names)}", f"l{len(self.names)}"
        self.names |= {
            places: np.array([*tightest]),
            limits: np.array([*tightest.values()])[:, None],
            "copyto": np.copyto,
        }
        self.lines += [
            f"part = q[{places}]",
            f"copyto(part, {limits}, where=part {beyond} {limits})",
            f"q[{places}] = part",
        ]
        return done

    def move(self, q: str, beyond: str, on: str | None, formula: str | None, limit: str = "v") -> None:
        """Move one output to an active limit, where it is beyond it."""
        self.names["copyto"] = np.copyto
        if formula is not None:
            self.lines.append(f"v = {formula}")
        where = f"({q} {beyond} {limit}) & {on}" if on else f"{q} {beyond} {limit}"
        self.lines.append(f"copyto({q}, {limit}, where={where})")

    def narrow(self, op: Op) -> None:
        """Return the rows."""
        self.end = "    return q.T.astype(float32, order='C')"
