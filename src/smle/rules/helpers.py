"""Functions that state common rules, including the rules of the paper's experiments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import RuleError
from smle.rules.about import about_of
from smle.rules.exclusions import NeverTogether
from smle.rules.expressions import Call, Compare, Name, Node, add, conjunction, multiply
from smle.rules.operators import Condition, node_of
from smle.rules.specification import RuleText

__all__ = ["bounded_change", "forbidden_pairs_from_data", "linear_rule", "mutually_exclusive", "rule"]


def rule(
    name: str,
    when: Any = None,
    then: Any = None,
    *,
    description: str | None = None,
    source: str | None = None,
    owner: str | None = None,
    since: Any = None,
) -> RuleText:
    """State a rule. `when` (None: always) and `then` are texts or Python conditions.

    `description`, `source`, `owner` and `since` are kept as metadata.

    Raises:
        RuleError: If `then` is missing, or `since` is not a date.
    """
    if then is None:
        raise RuleError(f"Rule '{name}': expected then=..., the requirement. Got nothing.")
    stated = {"description": description, "source": source, "owner": owner, "since": since}
    return RuleText(name, when, then, about_of(stated, f"Rule '{name}'"))


def linear_rule(
    Q: npt.ArrayLike | None,
    q: npt.ArrayLike | None,
    R: npt.ArrayLike,
    r: npt.ArrayLike,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str = "linear",
) -> RuleText:
    """State `Q x <= q  =>  R y <= r` from matrices. With Q=None it always applies.

    A float is read as its shortest decimal. Shapes: Q (rows, inputs), q (rows,), R (rows, outputs), r (rows,).

    Raises:
        RuleError: If shapes do not match.
    """
    when = None if Q is None or q is None else Condition(_rows(Q, q, inputs, "Q x <= q"))
    return RuleText(name, when, Condition(_rows(R, r, outputs, "R y <= r")))


def _rows(matrix: npt.ArrayLike, bounds: npt.ArrayLike, names: Sequence[str], what: str) -> Node:
    rows, ends = np.asarray(matrix), np.asarray(bounds)
    if rows.ndim != 2 or rows.shape[1] != len(names) or ends.shape != rows.shape[:1] or not rows.size:
        raise RuleError(
            f"{what}: expected a matrix with {len(names)} columns and a bound per row. "
            f"Got shapes {rows.shape} and {ends.shape}."
        )
    parts: list[Node] = []
    for row, end in zip(rows, ends, strict=True):
        terms = [multiply(node_of(c), [("*", Name(n))]) for c, n in zip(row, names, strict=True) if c]
        if not terms:
            raise RuleError(f"{what}: expected a coefficient other than 0 in every row. Got a row of zeros.")
        left = terms[0] if len(terms) == 1 else add(terms[0], ((1, term) for term in terms[1:]))
        parts.append(Compare((left, node_of(end)), ("<=",)))
    return conjunction(parts)


def mutually_exclusive(pairs: npt.NDArray[np.integer[Any]] | Sequence[tuple[str, str]]) -> NeverTogether:
    """Require that no listed pair of labels is predicted together.

    Args:
        pairs: An (n, 2) array of label numbers (0 is the first label), or pairs of names.
    """
    return NeverTogether(pairs if isinstance(pairs, np.ndarray) else list(pairs))


def bounded_change(delta: Any, outputs: Sequence[str]) -> Condition:
    """Require |y_(t+1) - y_t| <= delta for neighboring outputs, as in a forecast of several steps.

    Raises:
        RuleError: If there are fewer than two outputs.
    """
    if isinstance(outputs, str) or len(outputs) < 2:
        raise RuleError("Expected at least two outputs for a bounded change. Got fewer.")
    bound = node_of(delta)
    steps = [Compare((Call("abs", (add(Name(b), [(-1, Name(a))]),)), bound), ("<=",)) for a, b in pairwise(outputs)]
    return Condition(conjunction(steps))


def forbidden_pairs_from_data(Y: npt.ArrayLike, quantile: float) -> npt.NDArray[np.int32]:
    """Find the pairs of labels that rarely occur together: no more often than a quantile of all pairs.

    Args:
        Y: True labels, shape (rows, labels), 0 or 1.
        quantile: Between 0 (the rarest pairs) and 1.

    Returns:
        Pairs of label numbers, shape (pairs, 2), for `mutually_exclusive`.

    Raises:
        RuleError: If Y is not a 0/1 table of at least two labels, or the quantile is not between 0 and 1.
    """
    table = np.asarray(Y)
    if table.ndim != 2 or table.shape[1] < 2 or not len(table) or not np.isin(table, (0, 1)).all():
        raise RuleError(f"Expected a table (rows, labels) of 0 and 1 with two labels or more. Got shape {table.shape}.")
    if not 0 <= quantile <= 1:
        raise RuleError(f"Expected a quantile between 0 and 1. Got {quantile}.")
    ones = table.astype(np.float64)  # counts below 2**53 are exact, and BLAS multiplies floats only
    first, second = np.triu_indices(table.shape[1], 1)
    counts = (ones.T @ ones)[first, second]
    rare = counts <= np.quantile(counts, quantile)
    return np.stack([first[rare], second[rare]], axis=1).astype(np.int32)
