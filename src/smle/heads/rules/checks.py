"""The clip list and the check behind it, printed as one function (certificate format, section 13).

    (features, answer) -> (settled answers, the rows that do not pass, the bits of the regions there)

A literal holds if its sum, over outputs, their sizes and inputs, is at most its threshold. A clause holds if one of its
literals does, or if no region of its rule is active; likewise for the pairs of labels that a rule excludes.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.programs.source import Columns, PrintedRows, _Printer, joined
from smle_check.floats import TINY
from smle_check.heads.candidates import checked_of
from smle_check.heads.sums import columns_of
from smle_check.program import Op
from smle_check.stated import StatedSpecification

__all__ = ["BlockCheck", "Check", "CheckedColumns", "CheckedRows", "as_stored", "row"]

Array = npt.NDArray[Any]
_MOST_ROWS = 400  # outputs, and numbers in literals, up to which the check is printed row by row
_FEW_CLAUSES = 12
_MOST_DENSE, _SPARSE = 100_000, 0.05  # numbers of literals, and the share of nonzero ones, for sparse storage


class Check:
    """What is checked: clauses and excluded pairs, with the positions of their rules' regions, and stored numbers."""

    def __init__(self, spec: StatedSpecification, regions: Sequence[int], tensors: Mapping[str, Array]) -> None:
        place = {region: i for i, region in enumerate(regions)}
        where = [tuple(place[region] for region in rule.regions) for rule in spec.rules]
        checked = checked_of(spec)
        self.regions, self.where, self.moving = len(regions), where, checked.moving
        self.groups = spec.groups
        self.clauses = [(clause.rule, clause.literals) for clause in checked.clauses]
        self.excluded = [
            (rule, np.array(spec.rules[rule].exclusions.flat, dtype=np.intp).reshape(-1, 2))
            for rule in checked.excluding
        ]
        read = [columns_of(spec, literal) for literal in checked.literals]
        outputs, inputs = [columns for columns, _ in read], [columns for _, columns in read[: self.moving]]
        self.outputs = _rows(tensors["check.outputs"], outputs, len(spec.outputs))
        self.sizes = _rows(tensors["check.sizes"], outputs, len(spec.outputs))
        self.inputs = _rows(tensors["check.inputs"], inputs, len(spec.inputs))
        self.thresholds = tensors["check.thresholds"]
        self.is_sized = bool(self.sizes.nnz)
        both = sparse.hstack([self.outputs, self.sizes], format="csr") if self.is_sized else self.outputs
        self.matrix: Any = as_stored(both)

    @property
    def is_short(self) -> bool:
        """Whether it can be printed number by number."""
        pairs = sum(len(pairs) for _, pairs in self.excluded)
        numbers = np.ones(self.inputs.shape[1], dtype=bool)
        for group in self.groups:  # its sum is looked up
            numbers[[*group][1:]] = False
        size = self.outputs.nnz + self.sizes.nnz + int(np.count_nonzero(numbers[self.inputs.indices]))
        size += sum(len(own) for _, own in self.clauses)
        return bool(self.outputs.shape[1] + size + 2 * pairs <= _MOST_ROWS)


def _rows(values: Array, columns: Sequence[Sequence[int]], width: int) -> Any:
    """Return a sparse matrix of numbers listed row by row."""
    starts = np.cumsum([0, *map(len, columns)])
    places = np.array([k for own in columns for k in own], dtype=np.intp)
    matrix = sparse.csr_matrix((values.copy(), places, starts), (len(columns), width))
    matrix.sort_indices()
    matrix.eliminate_zeros()
    return matrix


def as_stored(matrix: Any) -> Any:
    """Keep a large matrix with few numbers sparse; return any other as an array."""
    size = matrix.shape[0] * matrix.shape[1]
    return matrix if size > _MOST_DENSE and matrix.nnz < _SPARSE * size else matrix.toarray()


def row(matrix: Any, k: int) -> list[tuple[int, float]]:
    """Return (column, number) for a row of a sparse matrix."""
    own = slice(matrix.indptr[k], matrix.indptr[k + 1])
    return list(zip(matrix.indices[own].tolist(), matrix.data[own].tolist(), strict=True))


class BlockCheck:
    """The check by blocks of outputs, for rows that do not pass as a whole.

    Args:
        check: What is checked.
        blocks: The outputs of each block.
        part_of: The column of each rule in the mask of binding parts.
    """

    def __init__(self, check: Check, blocks: Sequence[Array], part_of: Mapping[int, int]) -> None:
        self._check, self._outputs = check, np.concatenate(blocks)
        self._starts = np.cumsum([0, *map(len, blocks[:-1])])
        block_of = np.full(check.outputs.shape[1], -1)
        for number, own in enumerate(blocks):
            block_of[own] = number
        excluded = [np.empty(0, dtype=np.intp), *(pairs.reshape(-1) for _, pairs in check.excluded)]
        self._unknown = np.unique(block_of[np.concatenate(excluded)])  # pairs are not checked here
        read = [[i for k in own for i, _ in row(check.outputs, k)] for _, own in check.clauses]
        owner = np.array([block_of[own[0]] for own in read], dtype=np.intp)
        order = np.argsort(owner, kind="stable")
        self._owners, self._first = np.unique(owner[order], return_index=True)
        chosen = [check.clauses[c] for c in order.tolist()]
        self._literals = np.array([k for _, own in chosen for k in own], dtype=np.intp)
        self._clauses = np.cumsum([0, *(len(own) for _, own in chosen[:-1])])
        self._parts = np.array([part_of[rule] for rule, _ in chosen], dtype=np.intp)

    def passed(self, x: Array, given: Array, y: Array, active: Array) -> Array:
        """Return which blocks of answers `given` (n, m), clipped to y (n, m), pass: a mask (n, blocks)."""
        check, w = self._check, y.T.astype(np.float64)
        sums = check.outputs @ w + check.sizes @ np.abs(w)
        sums[: check.moving] += check.inputs @ x.T
        met = np.logical_or.reduceat((sums <= check.thresholds[:, None])[self._literals], self._clauses, axis=0)
        met |= ~active[:, self._parts].T
        kept = (given == y)[:, self._outputs]
        result = np.asarray(np.logical_and.reduceat(kept, self._starts, axis=1))
        result[:, self._owners] &= np.logical_and.reduceat(met, self._first, axis=0).T
        result[:, self._unknown] = False
        return result


class _Checked(_Printer):
    """What printed checks share. `words`: how they write "or" and "not"."""

    words = "or", "not "

    def __init__(self, ops: Sequence[Op], tensors: Mapping[str, Array], fmt: str, check: Check) -> None:
        self.check = check
        super().__init__(ops, tensors, fmt, check.groups)

    def read_later(self) -> list[int]:
        """Return the inputs that literals read."""
        return [int(k) for k in np.unique(self.check.inputs.indices)]

    def off(self, rule: int) -> list[str]:
        """Print "no region of the rule is active"; nothing if one always is."""
        places, (either, no) = self.check.where[rule], self.words
        if self.always.intersection(places):
            return []
        return [f"{no}({joined([f'b{i}' for i in places], f' {either} ')})"]

    def together(self, own: Sequence[tuple[int, Any]]) -> dict[tuple[str, ...], list[Any]]:
        """Group (rule, item) pairs by the condition under which the rule is off."""
        found: dict[tuple[str, ...], list[Any]] = {}
        for rule, one in own:
            found.setdefault(tuple(self.off(rule)), []).append(one)
        return found


class CheckedRows(_Checked, PrintedRows):
    """The check printed row by row, in Python's floats."""

    start = "    served, failed, known = [], [], []\n    for x, q in zip(features.tolist(), answer.tolist()):"

    def given(self, op: Op) -> None:
        """Read answers that clips have already moved."""
        self.lines.append("".join(f"q{i}, " for i in range(self.check.outputs.shape[1])) + "= q")

    def narrow(self, op: Op) -> None:
        """Print the check."""
        check, tiny = self.check, repr(float(TINY))
        outputs = range(check.outputs.shape[1])
        values = "".join(f"q{i}, " for i in outputs)
        if any("affine" in other.out for other in self.ops):  # without them, numbers are float32 already
            self.names["packed"] = array
            self.lines.append(f"{values}= packed('f', ({values}))")
        self.lines += [f"if -{tiny} < q{i} < {tiny}: q{i} = 0.0" for i in outputs]
        self.lines.append(f"served.append(({values}))")
        self.names["abs"] = abs
        self.lines += [f"a{i} = abs(q{i})" for i in np.unique(check.sizes.indices).tolist()]
        self.lines.append(f"if not ({self.conditions([self.literal(k) for k in range(len(check.thresholds))])}):")
        bits = "".join("True, " if i in self.always else f"b{i}, " for i in range(check.regions))
        self.lines += ["    failed.append(len(served) - 1)", f"    known.append(({bits}))"]
        self.names["array"] = np.array
        self.end = "    return array(served, dtype=float32), failed, known"

    def literal(self, k: int) -> str:
        """Print a literal: a sum compared with its threshold."""
        check = self.check
        terms = [
            f"{v!r} * {name}{i}" for name, own in (("q", check.outputs), ("a", check.sizes)) for i, v in row(own, k)
        ]
        if k < check.moving:
            terms += self.terms(check.inputs[k].toarray()[0].tolist())
        return f"{' + '.join(terms) or '0.0'} <= {float(check.thresholds[k])!r}"

    def conditions(self, literals: list[str]) -> str:
        """Print all clauses and exclusions."""
        check, asked = self.check, []
        for rule, own in check.clauses:
            asked.append(" or ".join([*self.off(rule), *(literals[k] for k in own)]))
        for rule, pairs in check.excluded:
            asked += [" or ".join([*self.off(rule), f"q{h} < 0.0", f"q{k} < 0.0"]) for h, k in pairs.tolist()]
        return " and ".join(f"({text})" for text in asked)


class CheckedColumns(_Checked, Columns):
    """The check printed column by column, in NumPy."""

    words = "|", "~"

    def given(self, op: Op) -> None:
        """Read answers that clips have already moved."""
        self.lines.append("q = answer.T")

    def narrow(self, op: Op) -> None:
        """Print the check."""
        check = self.check
        self.names |= {"tiny": np.float32(float(TINY)), "abs": np.abs, "ones": np.ones}
        self.lines += [
            "y = q.astype(float32)",
            "small = abs(y) < tiny",
            "if small.any(): y[small] = 0.0",
            "out = y.T.copy()",
        ]
        asked = self.clauses() if check.clauses else []
        if check.excluded:
            self.lines.append("on = (y >= 0.0).astype(float32)")
        for number, (off, own) in enumerate(self.together(check.excluded).items()):
            pairs = np.concatenate(own)
            self.names[f"pairs{number}"] = _matrix(pairs, check.outputs.shape[1])
            self.lines.append(f"e{number} = ((pairs{number} @ on) * on).any(axis=0)")
            asked.append(" | ".join([f"~e{number}", *off]))
        self.lines += [
            f"ok = {joined([f'({text})' for text in asked], ' & ')}",
            "bad = (~ok).nonzero()[0]",
            "if not len(bad): return out, bad, None",
            f"bits = ones((len(bad), {check.regions}), dtype=bool)",
        ]
        self.lines += [f"bits[:, {i}] = b{i}.take(bad)" for i in range(check.regions) if i not in self.always]
        self.end = "    return out, bad, bits"

    def clauses(self) -> list[str]:
        """Print the literals; return the texts of the clauses."""
        check = self.check
        self.names |= {"G": check.matrix, "H": check.thresholds[:, None], "array": np.array}
        self.lines.append("w = y.astype(float64)")
        if check.is_sized:
            self.names["joined"] = np.concatenate
            self.lines.append("w = joined((w, abs(w)))")
        self.lines.append("sums = G @ w")
        if check.moving:
            read = [k for k in self.read_later() if k not in self.group]
            self.names["S"] = as_stored(check.inputs[:, read])
            if read:
                self.lines.append(f"sums[:{check.moving}] += S @ array(({''.join(f'x{k}, ' for k in read)}))")
            for start, count in self.looked_up.items():
                table = check.inputs[:, start : start + count]
                if table.nnz:
                    self.names[f"S{start}"] = table.toarray()
                    self.lines.append(f"sums[:{check.moving}] += S{start}.take(j{start}, axis=1)")
        self.lines.append("holds = sums <= H")
        if len(check.clauses) <= _FEW_CLAUSES:
            return [" | ".join([*(f"holds[{k}]" for k in own), *self.off(rule)]) for rule, own in check.clauses]
        sizes = [len(own) for _, own in check.clauses]
        self.names |= {
            "listed": np.array([k for _, own in check.clauses for k in own]),
            "starts": np.cumsum([0, *sizes[:-1]]),
            "either": np.logical_or.reduceat,
        }
        self.lines.append("met = either(holds[listed], starts, axis=0)")
        asked = []
        groups = self.together([(rule, c) for c, (rule, _) in enumerate(check.clauses)])
        for number, (off, rows) in enumerate(groups.items()):
            self.names[f"rows{number}"] = np.array(rows)
            own = "met" if len(groups) == 1 else f"met[rows{number}]"
            self.lines.append(f"m{number} = {own}.all(axis=0)")
            asked.append(" | ".join([f"m{number}", *off]))
        return asked


def _matrix(pairs: Array, m: int) -> Any:
    """Return the matrix (m, m) of excluded pairs; its sums are integers below 2^24, which float32 adds exactly."""
    matrix = sparse.csr_matrix((np.ones(len(pairs), dtype=np.float32), (pairs[:, 0], pairs[:, 1])), (m, m))
    matrix.data[:] = 1.0  # a pair may be stated twice
    return as_stored(matrix)
