"""Pairs of labels that never go together, as one array, so that a million pairs stay cheap."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import RuleError
from smle.rules.expressions import And, Name, Node, Not, conjunction
from smle.rules.formula import unique_pairs
from smle.rules.instead import did_you_mean

__all__ = ["NeverTogether", "is_summary", "pairs_from_file", "ranges_text", "spelled_out", "summary"]

Pairs = npt.NDArray[np.int32]

SPELLED_OUT = 20
"""Print up to this many pairs as `not (cat and dog) and ...`, more as a summary."""

_SUMMARY = "never together: "


class NeverTogether:
    """The requirement that no listed pair of labels is predicted together.

    `pairs` is an (n, 2) array of label numbers (0 is the first label), a sequence of pairs of names, or a mapping from
    a label number to the numbers it excludes (`{0: "3 5-9"}`). With `by_number`, names that match no label are read as
    label numbers.
    """

    def __init__(self, pairs: Any, *, by_number: bool = False) -> None:
        self._stated, self._by_number = pairs, by_number

    def numbers(self, labels: Sequence[str]) -> Pairs:
        """Return sorted, distinct pairs of label numbers. Raises RuleError unless each names two different labels."""
        stated = self._stated
        if isinstance(stated, Mapping):
            pairs = _from_ranges(stated)
        elif isinstance(stated, np.ndarray):
            pairs = _from_array(stated)
        else:
            pairs = _from_names(stated, labels, self._by_number)
        if not len(pairs):
            raise RuleError("Expected at least one pair of labels. Got none.")
        if pairs.min() < 0 or pairs.max() >= len(labels):
            raise RuleError(
                f"Expected label numbers from 0 to {len(labels) - 1}. Got numbers from {pairs.min()} to {pairs.max()}."
            )
        same = pairs[:, 0] == pairs[:, 1]
        if same.any():
            raise RuleError(f"Expected pairs of different labels. Got '{labels[int(pairs[same][0, 0])]}' with itself.")
        return unique_pairs(pairs)


def summary(pairs: Pairs) -> str:
    """Return a placeholder text for a rule with many pairs. It cannot be parsed as a formula."""
    return f"{_SUMMARY}{len(pairs)} pairs of labels"


def is_summary(then: str) -> bool:
    """Return whether the text of a rule is a placeholder for an array of pairs."""
    return then.startswith(_SUMMARY)


def spelled_out(pairs: Pairs, labels: Sequence[str]) -> Node:
    """Write pairs as a formula: `not (cat and dog) and ...`."""
    return conjunction(Not(And((Name(labels[h]), Name(labels[k])))) for h, k in pairs.tolist())


def _from_array(stated: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if stated.ndim != 2 or stated.shape[1] != 2 or stated.dtype.kind not in "iu":
        raise RuleError(
            f"Expected an (n, 2) array of whole label numbers. Got shape {stated.shape} of {stated.dtype.name}."
        )
    if stated.dtype.kind == "u" and stated.size and stated.max() > 2**31:
        raise RuleError(f"Expected label numbers. Got {stated.max()}.")
    return stated.astype(np.int64)


def _from_names(stated: Any, labels: Sequence[str], by_number: bool) -> npt.NDArray[np.int64]:
    if not isinstance(stated, list | tuple):
        said = f"Got {str(stated)[:60]!r}."
        raise RuleError(f"Expected a list of pairs of labels, as in [[cat, dog], [cat, bird]]. {said}")
    number = {label: index for index, label in enumerate(labels)}
    if by_number and not any(name in number for pair in stated for name in pair):
        number = {str(index): index for index in range(len(labels))}
    flat = array("q")
    for pair in stated:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise RuleError(f"Expected pairs of labels, as in [[cat, dog], [cat, bird]]. Got {pair!r:.80}.")
        for name in pair:
            if not isinstance(name, str) or name not in number:
                raise RuleError(f"'{name!s:.80}' is not a label.{did_you_mean(str(name), list(labels))}")
            flat.append(number[name])
    return np.array(flat, dtype=np.int64).reshape(-1, 2)


def _from_ranges(stated: Mapping[Any, Any]) -> npt.NDArray[np.int64]:
    """Read `{0: "3 5-9"}`: label 0 excludes labels 3 and 5 to 9."""
    first, second = array("q"), array("q")
    for key, text in stated.items():
        try:
            label = int(key)
            for part in str(text).split():
                low, _, high = part.partition("-")
                start, stop = int(low), int(high or low) + 1
                if not 0 <= start < stop <= 1_000_000 or len(second) > 50_000_000:
                    raise ValueError(part)
                second.extend(range(start, stop))
                first.extend([label] * (stop - start))
        except (ValueError, OverflowError):
            raise RuleError(
                f"Expected label numbers and ranges, as in 0: 3 5-9. Got '{key!s:.40}: {text!s:.40}'."
            ) from None
    return np.stack([np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)], axis=1)


def ranges_text(pairs: Pairs) -> dict[int, str]:
    """Write sorted pairs as `{0: "3 5-9"}`, the inverse of `_from_ranges`."""
    breaks = np.flatnonzero((np.diff(pairs[:, 0]) != 0) | (np.diff(pairs[:, 1]) != 1)) + 1
    starts = np.concatenate([[0], breaks])
    ends = np.concatenate([breaks, [len(pairs)]]) - 1
    parts: dict[int, list[str]] = {}
    for label, low, high in zip(
        pairs[starts, 0].tolist(), pairs[starts, 1].tolist(), pairs[ends, 1].tolist(), strict=True
    ):
        parts.setdefault(label, []).append(str(low) if low == high else f"{low}-{high}")
    return {label: " ".join(words) for label, words in parts.items()}


def pairs_from_file(name: str, folder: Path | None) -> NeverTogether:
    """Read pairs from a file next to the rules file: `.npy` (label numbers) or `.csv` (names or numbers)."""
    if folder is None:
        raise RuleError(f"Expected pairs of labels. The file '{name[:80]}' can only be named in a rules file on disk.")
    if Path(name).name != name or Path(name).suffix not in (".npy", ".csv"):
        raise RuleError(f"Expected a .npy or .csv file next to the rules file. Got '{name[:80]}'.")
    path = folder / name
    try:
        if path.suffix == ".npy":
            loaded = np.load(path, allow_pickle=False)
            return NeverTogether(loaded if isinstance(loaded, np.ndarray) else np.empty(0))
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _from_csv(csv.reader(file))
    except RuleError:
        raise
    except (OSError, ValueError, EOFError, csv.Error, SyntaxError, TypeError) as error:
        raise RuleError(f"Cannot read the pairs in '{name}': {error}.") from None


def _from_csv(rows: Iterable[list[str]]) -> NeverTogether:
    words: dict[str, str] = {}
    pairs = []
    for row in rows:
        if len(row) != 2 and row:
            raise RuleError(f"Expected two columns of labels. Got the row {row!r:.80}.")
        if row:
            pairs.append(tuple(words.setdefault(cell.strip(), cell.strip()) for cell in row))
    return NeverTogether(pairs, by_number=True)
