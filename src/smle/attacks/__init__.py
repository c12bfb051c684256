"""`smle.attack`: search any model for real violations, judged exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.attacks.subjects import AskedTable, subject_of, usable
from smle.errors import RuleError
from smle.heads.box.algorithms.strongest import StrongestCounterexample, counterexample
from smle.heads.box.proof.verdict import NotProved
from smle.heads.box.proof.verify import verify as verify_heads
from smle.rules import Choice, Number, NumericInput, Specification, number_text
from smle.rules.membership import broken
from smle.rules.shown import mentioned
from smle.violations import Broken, excess_of, hunt

__all__ = ["Attack", "StrongestCounterexample", "Violation", "attack", "counterexample"]

FloatArray = npt.NDArray[np.floating]
_SHRUNK = 200  # inputs to try setting back to a usual value


@dataclass(frozen=True, eq=False)
class Violation:
    """An input at which a model breaks a rule, judged in exact arithmetic.

    * `rule`: its name; `asks`: its `then`, and where it applies.
    * `inputs`: the inputs that the rule reads or the violation depends on. The others have usual values. Numbers in the
      user's units, categories by name, None where the value is missing.
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


def attack(
    model: Any,
    specification: Specification | None = None,
    *,
    examples: Any = None,
    rules: Sequence[str] | None = None,
    tries: int = 50_000,
    seed: int = 0,
) -> Attack:
    """Search for an input at which a model breaks a rule. What it finds is real; finding nothing proves nothing.

    The model is tried at points inside and at the borders of every region, at corners and a few floats around them. The
    points nearest to breaking a rule are then improved: by gradient for a torch module, and by steps of many kinds.
    Categories, whole numbers, steps and missing values are tried as they occur in tables. Whether a rule is broken is
    decided in rational arithmetic, at the floats that were passed and answered; under rules with steps or equalities,
    at the multiples they stand for, if all of them do.

    Args:
        model: Fitted estimator, function of a table, torch module of features (n, d), path of an ONNX file, or a model
            of smle. A function returns a column per output: numbers; logits of labels (on at 0 or above) or decisions
            as booleans or integers; a score per option or the options by name.
        specification: The rules; by default the model's.
        examples: A table that shows what else the model reads besides the inputs of the rules; the search starts from
            its rows. If it is an array, the model is called with arrays.
        rules: Names of the rules to attack; by default all.
        tries: About how many inputs to try; the search ends earlier if a violation is found.
        seed: Seed of the random numbers.

    Raises:
        TypeError: If the model is of another kind, or has no rules and none are given.
        ValueError: If `tries` is below 1.
        RuleError: If there are no rules, or none of that name.
        DataError: If examples or answers do not fit the rules.
        ModelFormatError: If there is no ONNX file that can be run.
    """
    spec = _chosen(_rules_of(model, specification), rules)
    if tries < 1:
        raise ValueError(f"Expected at least one try. Got {tries}.")
    subject = subject_of(model, spec, examples)
    rng = np.random.default_rng(seed)
    starts = [part for part in (usable(spec, examples), _unproved(model, spec)) if part is not None]
    with _evaluating(model):
        found, tried, unreached = hunt(
            subject, spec, tries=tries, rng=rng, starts=np.concatenate(starts) if starts else None
        )
        violation = None if found is None else _told(subject, spec, found, usable(spec, examples))
    return Attack(violation, tried, tuple(spec.rules[r].name for r in unreached))


def _rules_of(model: Any, specification: Specification | None) -> Specification:
    spec = specification
    for name in ("specification_", "spec"):
        spec = getattr(model, name, None) if spec is None else spec
    if not isinstance(spec, Specification):
        raise TypeError(
            f"Expected the rules as a Specification. Got {type(specification).__name__}, and the model has none."
        )
    return spec


def _chosen(spec: Specification, names: Sequence[str] | None) -> Specification:
    if not spec.rules:
        raise RuleError("Expected rules to attack. Got none.")
    if names is None:
        return spec
    unknown = [name for name in names if name not in {rule.name for rule in spec.rules}]
    if unknown or not names:
        raise RuleError(f"Expected names of rules. Got {unknown or 'none'}.")
    return spec.with_rules(tuple(rule for rule in spec.rules if rule.name in names))


def _unproved(model: Any, spec: Specification) -> FloatArray | None:
    """Return inputs (n, d) at which the proof of a learned box fails: good starting points."""
    if not hasattr(model, "frozen_heads"):
        return None
    verdicts = verify_heads(model.frozen_heads(), model.spec, model.cells)
    points = [v.x for _, v in verdicts.failures() if isinstance(v, NotProved) and np.isfinite(v.x).all()]
    return np.array(points[:1000]).reshape(-1, len(spec.columns))


def _evaluating(model: Any) -> contextlib.AbstractContextManager[None]:
    if not hasattr(model, "modules"):
        return contextlib.nullcontext()
    from smle.networks.predicted import evaluating

    return evaluating(model)


def _told(subject: Any, spec: Specification, found: Broken, examples: FloatArray | None) -> Violation:
    """Return a violation in the user's terms, with inputs at usual values where that does not halve its excess."""
    rule = spec.rules[found.rule]
    only, usual = spec.with_rules((rule,)), _usual(spec, examples)
    x, y = found.x, found.y
    needed = _read_by(spec, found.rule)
    for item, place in spec.input_slices[:_SHRUNK]:
        flag = spec.flag_columns.get(item.name)
        columns = [*range(place.start, place.stop), *([] if flag is None else [flag])]
        if item.name in needed or (x[columns] == usual[columns]).all():
            continue
        trial = x.copy()
        trial[columns] = usual[columns]
        X, Y = subject.ask(trial[None])
        excess = excess_of(rule.requirement, X[0], Y[0], spec)[0] if broken(only, X, Y).any() else None
        if excess is not None and (found.excess is None or 2 * excess >= found.excess):
            x, y = X[0], Y[0]
        else:
            needed.add(item.name)
    needed.update(item.name for item in spec.inputs[_SHRUNK:])
    excess, used = excess_of(rule.requirement, x, y, spec)
    row = AskedTable(spec).row(x)
    return Violation(
        rule=rule.name,
        asks=rule.then if rule.when is None else f"{rule.then}, where {rule.when}",
        inputs={name: value for name, value in row.items() if name in needed},
        row=row,
        answer=_decisions(spec, y, used),
        outputs={name: float(value) for name, value in zip(spec.targets, y, strict=True)},
        excess=excess,
    )


def _read_by(spec: Specification, rule: int) -> set[str]:
    columns = set(mentioned(spec.rules[rule]))
    read = {item.name for item, place in spec.input_slices if columns & set(range(place.start, place.stop))}
    return read | {name for name, column in spec.flag_columns.items() if column in columns}


def _usual(spec: Specification, examples: FloatArray | None) -> FloatArray:
    """Return a usual input (d,): median and most frequent category of the examples, else the middle of the domain."""
    rows = np.array(spec.ends())
    rows = rows if examples is None or not len(examples) else examples.astype(np.float64)
    usual: list[float] = []
    for item, place in spec.input_slices:
        if isinstance(item, NumericInput):
            middle = float(np.median(rows[:, place]))
            usual.append(float(np.rint(middle)) if item.integer else middle)
        else:
            usual += np.eye(len(item.categories))[int(rows[:, place].sum(axis=0).argmax())].tolist()
    return np.array([*usual, *([0.0] * len(spec.flags))])


def _decisions(spec: Specification, y: npt.NDArray[np.float64], used: Sequence[int]) -> dict[str, Any]:
    """Return the outputs that own one of the columns `used`, as a user reads them."""
    result: dict[str, Any] = {}
    for item, place in spec.output_slices:
        values = y[place]
        if not any(place.start <= column < place.stop for column in used):
            continue
        if isinstance(item, Choice):
            best = values.max() if item.pick == "max" else values.min()
            result[item.name] = " = ".join(o for o, v in zip(item.options, values, strict=True) if v == best)
        else:
            result[item.name] = float(values[0]) if isinstance(item, Number) else bool(values[0] >= 0)
    return result


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    return number_text(value, 9) if isinstance(value, float) else str(value)
