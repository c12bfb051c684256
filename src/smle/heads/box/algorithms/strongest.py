"""The strongest counterexample in the paper's sense: the point of the box at which a head breaks rules most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.agreement import cells_of
from smle.certificates.document import arrays_of
from smle.errors import NotCertifiedError, RuleError
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import strongest_counterexample
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.heads.box.proof.worst_case import output_at
from smle.regions.cells import Cells, binding_rules
from smle.rules import CNF, Specification
from smle.violations import excess_of

__all__ = ["StrongestCounterexample", "counterexample"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StrongestCounterexample:
    """A point (x, z) of a network's over-approximation at which a head breaks rules.

    The clip allows this point. Whether the network itself ever reaches it is another question: see `smle.attack`.

    * `x`: the input by column, in the user's units; for a categorical input, the shares of its categories.
    * `z` (n,): the clipped embedding.
    * `y`: the output, y = W z + V x + b, by column.
    * `strength`: for linear rules sum_k max(0, R_k y - r_k) over rows as stated, for exclusions min(y_h, y_k), for
      other clauses the smallest violation of a literal. Possible rounding is included.
    * `rules`: the names of the broken rules, worst first; `rule` is the first.
    * `head`: the number of the head, by cell.
    """

    x: dict[str, float]
    z: Array
    y: dict[str, float]
    strength: float
    rules: tuple[str, ...]
    head: int

    @property
    def rule(self) -> str:
        """The rule broken most."""
        return self.rules[0]

    def __repr__(self) -> str:
        place, answer = (", ".join(f"{k}={v:.6g}" for k, v in part.items()) for part in (self.x, self.y))
        broken = ", ".join(f"'{name}'" for name in self.rules)
        return (
            f"Head {self.head} breaks {broken} with strength {self.strength:.4g}: at {place} the box lets it answer "
            f"{answer}. smle.attack searches for an input at which the network itself does."
        )


def counterexample(model: Any, rule: str | None = None) -> StrongestCounterexample | None:
    """Return the strongest counterexample of a network with a learned box, or None if there is none.

    The paper searches by MILP; closed forms and LPs find the same optimum here (docs/reproduction.md). None is a
    solver's claim; `smle.certify` returns a proof.

    Args:
        model: A network with a learned box: a `BoxNetwork`, or a fitted `SMLERegressor` or `SMLEClassifier`.
        rule: The name of a rule; by default all rules together.

    Raises:
        TypeError: If there is no box. A head of rules checks each answer, so there is nothing to search.
        RuleError: If there is no such rule.
        NotCertifiedError: If the search failed.
    """
    over, spec, cells = _box_of(model)
    names = [stated.name for stated in spec.rules]
    if rule is not None:
        if rule not in names:
            raise RuleError(f"Expected the name of a rule. Got '{rule}'. Known: {', '.join(names)}.")
        # Keep the numbers of rules: cells refer to them.
        spec = replace(spec, rules=tuple(r if r.name == rule else replace(r, requirement=CNF()) for r in spec.rules))
    best: StrongestCounterexample | None = None
    for number, head in enumerate(over.heads):
        if head is None:
            continue
        search, _ = strongest_counterexample(head, HeadProblem.of(over, spec, cells, number))
        if search.found is None:
            if not search.none_exists:
                raise NotCertifiedError(f"The search for a counterexample failed: {search.status} {search.message}.")
        elif best is None or search.found.strength > best.strength:
            found = search.found
            best = _told(spec, cells, number, head, found.x, found.z, strength=found.strength)
    return best


def _told(
    spec: Specification, cells: Cells, number: int, head: Head, x: Array, z: Array, *, strength: float
) -> StrongestCounterexample:
    y = output_at(head, x, z)
    binding = dict.fromkeys(rule for rule, _ in binding_rules(cells, spec, number))
    excess = {rule: excess_of(spec.rules[rule].requirement, x, y)[0] or 0 for rule in binding}
    worst = sorted(excess, key=lambda rule: -excess[rule])
    # Nothing is above 0 if the point only touches a limit or rounding decides.
    broken = [rule for rule in worst if excess[rule] > 0] or worst[:1]
    return StrongestCounterexample(
        dict(zip(spec.columns, x.tolist(), strict=True)),
        z,
        dict(zip(spec.targets, y.tolist(), strict=True)),
        strength,
        tuple(spec.rules[rule].name for rule in broken),
        number,
    )


def _box_of(model: Any) -> tuple[FrozenHeads, Specification, Cells]:
    """Return the heads with their bounds, the rules and the cells of a network, or raise TypeError."""
    if hasattr(model, "frozen_heads"):
        return model.frozen_heads(), model.spec, model.cells
    certificate, spec = getattr(model, "certificate_", None), getattr(model, "specification_", None)
    spec = getattr(model, "spec", None) if spec is None else spec
    if certificate is None or spec is None:
        raise TypeError(
            f"Expected a network with a box, or a fitted model that has one. Got {type(model).__name__}. "
            "smle.attack(model, specification) searches for a violation of any model."
        )
    if certificate.kind != "box":
        raise TypeError(
            "This model has a head of rules, which checks each answer before it is served: there is no box to search. "
            "smle.attack(model) searches for a violation of what is served."
        )
    return FrozenHeads.of_stored(arrays_of(certificate.tensors)), spec, cells_of(certificate, spec)
