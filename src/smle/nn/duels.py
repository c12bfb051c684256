"""The corrector for labels that exclude each other, however many: a duel for each pair.

Let t be the model's logits, turned so that each clause says "not both t_h > 0 and t_k > 0" (for `cat implies animal`
the logit of `animal` is turned). A unit v_hk of the embedding decides each pair, +1 for h and -1 for k, and a unit per
label carries its logit. With beta no less than any logit and d_h the number of label h's duels, the head is

    y_h = alpha_h z_h - alpha_h + beta (1 - d_h + sum over duels of +-v),   alpha_h z_h = t_h + alpha_h - beta

A label that wins all its duels keeps its logit; one that loses is pushed far below zero. In y_h + y_k the unit v_hk
cancels, and what is left is at most 0 for all values of all other units: that is what the certificate proves.

Who wins is a linear function of the logits, t_h - t_k at first, fitted to the nearest allowed answers of the examples:
of three labels in a row the two outer ones may win together against a stronger one in the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smle.guarantees import PlainClause
from smle.nn.limits import DOUBLINGS, FIRST_MARGIN, Block

__all__ = ["Duels", "duels", "turned_pairs"]

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.intp]
_SHARP = 1e4  # duels are undecided where they are nearer than the typical logit divided by this
_SPARE = 1.0  # logits are kept up to the largest seen, and this share more
_ROWS, _NUMBERS = 2000, 5_000_000  # examples, and weights times examples, up to which duels are fitted
_STEEP, _HELD = 10.0, 1e-2  # of the logistic loss, in typical logits; price of leaving t_h - t_k


@dataclass(frozen=True, eq=False)
class Duels:
    """Pairs (p, 2) of labels in turned logits; who wins is `rows . t + offsets`, shapes (p, m) and (p,).

    `turn` (m,) is +1 or -1; `lower` (m,) and `upper` () bound what turned logits are kept.
    """

    pairs: Pairs
    turn: Array
    rows: Array
    offsets: Array
    lower: Array
    upper: float

    @property
    def units(self) -> int:
        """Width of the embedding."""
        return len(self.turn) + len(self.pairs)

    def blocks(self) -> Iterator[Block]:
        """Yield corrections that keep the rules with growing margins."""
        m, p = len(self.turn), len(self.pairs)
        first, second = self.pairs.T
        alpha, beta = (self.upper - self.lower) / 2, self.upper
        sides = np.zeros((p, m))
        sides[np.arange(p), first], sides[np.arange(p), second] = 1.0, -1.0
        count = np.abs(sides).sum(axis=0)
        fighting = count > 0
        M = np.vstack([np.diag(1 / alpha), self.rows]) * self.turn
        c = np.concatenate([1 - beta / alpha, self.offsets])
        W = np.hstack([np.diag(alpha), beta * sides.T]) * self.turn[:, None]
        # Labels without duels: alpha z = t + alpha - beta as it is.
        b = beta - alpha - beta * count
        margin = FIRST_MARGIN * float(np.abs(b).max(initial=beta))
        for _ in range(DOUBLINGS):
            yield Block(M, c, W, (b - margin * fighting) * self.turn)
            margin *= 2


def turned_pairs(clauses: Iterable[PlainClause], labels: npt.NDArray[np.bool_]) -> tuple[Pairs, Array] | None:
    """Return pairs (p, 2) and how labels are turned (m,), if all clauses are about two labels each; None otherwise.

    A label that must be on by one clause and off by another has no turn that suits both.
    """
    turn, pairs = np.zeros(len(labels)), []
    for clause in clauses:
        if len(clause.literals) != 2 or any(len(lit.outputs) != 1 or lit.h != 0 for lit in clause.literals):
            return None
        ends = [int(literal.outputs[0]) for literal in clause.literals]
        for end, literal in zip(ends, clause.literals, strict=True):
            sign = float(np.sign(literal.g[0]))
            if not labels[end] or turn[end] == -sign:
                return None
            turn[end] = sign
        if ends[0] == ends[1]:
            return None
        pairs.append(sorted(ends))
    return np.unique(np.array(pairs, dtype=np.intp).reshape(-1, 2), axis=0), np.where(turn == 0, 1.0, turn)


def duels(pairs: Pairs, turn: Array, seen: Array, wanted: npt.NDArray[np.bool_]) -> Duels:
    """Return duels fitted to outputs (N, m) and to which labels the nearest allowed answers to them have (N, m)."""
    t, on = seen * turn, wanted == (turn > 0)
    typical = float(np.abs(t).mean()) or 1.0
    lower, upper = t.min(axis=0), max(float(t.max()), 0.0)
    spare = _SPARE * (upper - lower) + 1e-3 * typical
    rows, offsets = _fitted(pairs, t, on, typical)
    sharp = _SHARP / typical
    return Duels(pairs, turn, sharp * rows, sharp * offsets, lower - spare, upper + float(spare.max()))


def _fitted(pairs: Pairs, t: Array, on: npt.NDArray[np.bool_], typical: float) -> tuple[Array, Array]:
    """Return who wins as a linear function of turned logits (N, m): rows (p, m) and offsets (p,).

    A logistic loss where just one of the two is on. It is convex; the start is t_h - t_k, and stays where it decides as
    many examples rightly.
    """
    every = max(1, -(-len(t) // _ROWS))
    t, on = t[::every], on[::every]
    p, m = len(pairs), t.shape[1]
    start = np.zeros((p, m))
    start[np.arange(p), pairs[:, 0]], start[np.arange(p), pairs[:, 1]] = 1.0, -1.0
    if p * m * len(t) > _NUMBERS:
        return start, np.zeros(p)
    logits, base = torch.from_numpy(t / typical), torch.from_numpy(start)
    winner = torch.from_numpy(on[:, pairs[:, 0]].astype(np.float64) - on[:, pairs[:, 1]])
    change = torch.zeros(p, m + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([change], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        score = logits @ (base + change[:, :m]).T + change[:, m]
        misses = torch.nn.functional.softplus(-_STEEP * winner * score) * winner.abs()
        loss = misses.sum() / len(logits) + _HELD * (change**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        scores = logits @ base.T, logits @ (base + change[:, :m]).T + change[:, m]
        misses = [((score * winner <= 0) & (winner != 0)).sum(dim=0).numpy() for score in scores]
    better = misses[1] < misses[0]  # NaN misses all
    found = np.where(better[:, None], change.detach().numpy(), 0.0)
    return start + found[:, :m], typical * found[:, m]
