"""What an attack hands over: a violation in the user's units, or none, which proves nothing."""

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
    * `inputs`: those that matter: the rule reads them, or the violation depends on them. The others may have any usual
      value. Numbers in the user's units, categories by name, None where the value is missing.
    * `row`: all inputs, as in a table.
    * `answer`: the outputs that the rule reads: numbers, True or False for labels, options by name.
    * `outputs`: all numbers behind the answer: logits for labels, a score per option.
    * `excess`: by how much the rule is broken, exactly, in the units of the comparison that came nearest to hold, as it
      is stated. 0: a limit that is excluded was reached. None: the answer is no finite number.
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
            much = "the answer is no finite number"
        else:
            much = f"off by {number_text(self.excess, 4)}" if self.excess else "a limit that is excluded is reached"
        return f"Rule '{self.rule}' asks {self.asks}. At {place} the model answers {answer}: {much}."


@dataclass(frozen=True, eq=False)
class Attack:
    """The outcome of `smle.attack`. It has no truth value: ask `found`.

    * `violation`: the strongest one that was found, or None.
    * `tried`: how many inputs the model was asked.
    * `unreached`: rules that bind at none of them, so that nothing was learned about them.
    """

    violation: Violation | None
    tried: int
    unreached: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether a violation was found. If not, nothing is proved."""
        return self.violation is not None

    def __bool__(self) -> bool:
        raise TypeError("An attack has no truth value: that nothing was found is no proof. Ask attack.found.")

    def __repr__(self) -> str:
        """Say what was found, and that nothing found is not a proof."""
        if self.violation is not None:
            return f"{self.violation} ({self.tried:,} inputs tried.)"
        said = f"No violation found at {self.tried:,} inputs. This is not a proof."
        if self.unreached:
            said += f" No input was found at which these rules bind: {', '.join(self.unreached)}."
        return said


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    return number_text(value, 9) if isinstance(value, float) else str(value)
