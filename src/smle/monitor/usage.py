"""Counts the rows a model sees, over any number of chunks: which rules apply, which cells serve, what is outside."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import ModelFormatError
from smle.monitor.corrections import Corrections, paired, summed
from smle.rules import Specification

__all__ = ["Edges", "Usage", "column_edges"]

Edges = dict[str, tuple[float, ...]]
"""The ascending ends of each input column's bins: bin i holds edges[i-1] < x <= edges[i]."""

_BINS = 40


def column_edges(spec: Specification, encoded: npt.NDArray[Any]) -> Edges:
    """Return bins with about equally many rows for every input column; 0/1 columns get two."""
    coded = {column for group in spec.one_hot for column in group} | set(spec.flag_columns.values())
    edges: Edges = {}
    for i, name in enumerate(spec.columns):
        if i in coded:
            edges[name] = (0.5,)
            continue
        ends = np.quantile(encoded[:, i].astype(np.float64), np.arange(1, _BINS) / _BINS, method="lower")
        edges[name] = tuple(float(v) for v in np.unique(ends))
    return edges


@dataclass(frozen=True)
class Usage:
    """Counts over rows; counts of chunks can be added.

    * `rules`: rows where each rule's condition holds; `cells`: rows that each head served.
    * `outside`: rows outside the range of each column; `outside_rows`: rows outside in any.
    * `clipped`, `clipped_squares`: sums over rows of the share of clipped units, and of its square.
    * `edges`, `bins`: the ends of each column's bins, and the rows in each.
    * `missing`: rows in which an input with a stand-in is missing, by input.
    * `head`: what a head of rules did to the answers. It has no cells and clips no units.
    * `set_aside`: rows that could not be read, not counted in `rows`.
    """

    rows: int
    rules: dict[str, int]
    cells: tuple[int, ...]
    outside: dict[str, int]
    outside_rows: int
    clipped: float
    clipped_squares: float
    edges: Edges = field(default_factory=dict)
    bins: dict[str, tuple[int, ...]] = field(default_factory=dict)
    head: Corrections | None = None
    missing: dict[str, int] = field(default_factory=dict)
    set_aside: int = 0

    @classmethod
    def count(
        cls,
        spec: Specification,
        encoded: npt.NDArray[Any],
        edges: Edges,
        *,
        active: npt.NDArray[np.bool_],
        inside: npt.NDArray[np.bool_],
        cell: npt.NDArray[np.int64] | None = None,
        clipped: npt.NDArray[np.float32] | None = None,
        heads: int = 0,
        head: Corrections | None = None,
        missing: dict[str, int] | None = None,
        set_aside: int = 0,
    ) -> Usage:
        """Count encoded rows (rows, d), given how the deployed program sees them.

        Shapes: active (rows, rules), inside (rows, d); behind a learned box also cell (rows,) and clipped (rows,), the
        share of clipped units.
        """
        share = np.zeros(0) if clipped is None else clipped.astype(np.float64)
        bins = {}
        for i, name in enumerate(spec.columns):
            if name in edges:
                place = np.searchsorted(np.asarray(edges[name]), encoded[:, i], side="left")
                bins[name] = tuple(np.bincount(place, minlength=len(edges[name]) + 1).tolist())
        return cls(
            rows=len(encoded),
            rules=dict(zip((r.name for r in spec.rules), active.sum(axis=0).tolist(), strict=True)),
            cells=() if cell is None else tuple(np.bincount(cell, minlength=heads).tolist()),
            outside=dict(zip(spec.columns, (~inside).sum(axis=0).tolist(), strict=True)),
            outside_rows=int((~inside.all(axis=1)).sum()),
            clipped=float(share.sum()),
            clipped_squares=float((share**2).sum()),
            edges=edges,
            bins=bins,
            head=head,
            missing=missing or {},
            set_aside=set_aside,
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            rows=self.rows + other.rows,
            rules=summed(self.rules, other.rules),
            cells=paired(self.cells, other.cells),
            outside=summed(self.outside, other.outside),
            outside_rows=self.outside_rows + other.outside_rows,
            clipped=self.clipped + other.clipped,
            clipped_squares=self.clipped_squares + other.clipped_squares,
            edges=self.edges,
            bins={name: paired(counts, other.bins[name]) for name, counts in self.bins.items()},
            head=None if self.head is None or other.head is None else self.head + other.head,
            missing=summed(self.missing, other.missing),
            set_aside=self.set_aside + other.set_aside,
        )

    @property
    def clipped_share(self) -> float:
        """The mean share of clipped units."""
        return self.clipped / self.rows if self.rows else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as model.json holds it."""
        columns = {
            name: {"outside": count, "edges": list(self.edges.get(name, ())), "bins": list(self.bins.get(name, ()))}
            for name, count in self.outside.items()
        }
        return {
            "rows": self.rows,
            "rules": self.rules,
            "cells": list(self.cells),
            "outside_rows": self.outside_rows,
            "clipped": {"sum": self.clipped, "squares": self.clipped_squares},
            "columns": columns,
            "missing": self.missing,
            **({} if self.head is None else {"head": self.head.to_json()}),
            **({"set_aside": self.set_aside} if self.set_aside else {}),
        }

    @classmethod
    def from_json(cls, data: Any) -> Usage:
        """Read the result of `to_json`. Raises ModelFormatError if the data are malformed."""
        try:
            columns = data["columns"]
            edges = {k: tuple(float(e) for e in v["edges"]) for k, v in columns.items()}
            if not all(map(math.isfinite, (end for ends in edges.values() for end in ends))):
                raise ValueError("a bin has no finite end")
            return cls(
                rows=int(data["rows"]),
                rules={str(k): int(v) for k, v in data["rules"].items()},
                cells=tuple(int(v) for v in data["cells"]),
                outside={k: int(v["outside"]) for k, v in columns.items()},
                outside_rows=int(data["outside_rows"]),
                clipped=float(data["clipped"]["sum"]),
                clipped_squares=float(data["clipped"]["squares"]),
                edges=edges,
                bins={k: tuple(int(e) for e in v["bins"]) for k, v in columns.items()},
                head=Corrections.from_json(data["head"]) if "head" in data else None,
                missing={str(k): int(v) for k, v in data.get("missing", {}).items()},
                set_aside=int(data.get("set_aside", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise ModelFormatError("model.json: `training` does not hold the counts of training rows.") from None
