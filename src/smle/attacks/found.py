"""The result of an attack: a violation in the user's units, or none, which proves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from smle.rules import number_text

__all__ = ["Attack", "Violation"]


@dataclass(frozen=True, eq=False)
class Violation:
    """An input at which a model breaks a rule, judged in exact arithmetic.

    * `rule`: its name; `asks`: its `then`.
    * `inputs`: those that matter: the rule reads them, or the violation depends on them. The others have usual values.
      Numbers in the user's units, categories by name, None where the value is missing.
    * `row`: all inputs, as in a table.
    * `answer`: the outputs that the rule reads: numbers, True or False for labels, options by name.
    * `outputs`: all numbers behind the answer: logits for labels, a score per option.
    * `excess`: by how much the rule is broken, exactly, in the units of the comparison nearest to holding, as stated.
      0: the answer touches a limit that the rule excludes. None: the answer is not a finite number.
    """

    rule: str
    asks: str
    inputs: dict[str, Any]
    row: dict[str, Any]
    answer: dict[str, Any]
    outputs: dict[str, float]
    excess: Fraction | None

    def __str__(self) -> str:
        place = ", ".join(f"{name}={_shown(value)}" for name, value in self.inputs.items()) or "every input"
        answer = ", ".join(f"{name}={_shown(value)}" for name, value in self.answer.items())
        if self.excess is None:
            much = "the answer is not a finite number"
        else:
            much = (
                f"off by {number_text(self.excess, 4)}" if self.excess else "it reaches a limit that the rule excludes"
            )
        return f"Rule '{self.rule}' asks {self.asks}. At {place} the model answers {answer}: {much}."


@dataclass(frozen=True, eq=False)
class Attack:
    """The result of `smle.attack`. It has no truth value; use `found`.

    * `violation`: the strongest one found, or None.
    * `tried`: how many inputs were tried.
    * `unreached`: rules that apply to none of them, so the attack says nothing about these.
    """

    violation: Violation | None
    tried: int
    unreached: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether a violation was found. If not, nothing is proved."""
        return self.violation is not None

    def __bool__(self) -> bool:
        raise TypeError("An attack has no truth value, because finding nothing proves nothing. Use attack.found.")

    def __repr__(self) -> str:
        """Say what was found, and that finding nothing is not a proof."""
        if self.violation is not None:
            return f"{self.violation} ({self.tried:,} inputs tried.)"
        said = f"No violation found at {self.tried:,} inputs. This is not a proof."
        if self.unreached:
            said += f" These rules apply at none of them: {', '.join(self.unreached)}."
        return said


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    return number_text(value, 9) if isinstance(value, float) else str(value)
