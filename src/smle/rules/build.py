"""Builds a Specification from plain data: the contents of a YAML file, or the arguments of a Python call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from smle.errors import RuleError
from smle.rules.about import ABOUT, about_of
from smle.rules.affine import number
from smle.rules.compiler import compile_rule, regions_of_rule
from smle.rules.dates import day_of, is_date
from smle.rules.exclusions import NeverTogether
from smle.rules.expressions import FUNCTIONS, KEYWORDS, Missing, Node, exact_number, nodes_in, shown
from smle.rules.instead import did_you_mean
from smle.rules.lines import located
from smle.rules.lookups import Table, read_table, split
from smle.rules.operators import Condition, Term, node_of
from smle.rules.parser import Functions, parse, parse_rule
from smle.rules.specification import Categorical, Choice, Label, Number, NumericInput, Rule, RuleText, Specification
from smle.rules.vocabulary import Vocabulary
from smle_check.names import twins

__all__ = ["PARTS", "build", "check_keys", "to_fraction"]

PARTS: dict[str, Any] = {"inputs": {}, "outputs": [], "labels": [], "choices": {}, "constants": {}, "tables": {}}
"""The parts of a rules file beside the rules, each with its value if it is left out."""

# A rule, the tree of `when`, the tree of `then`.
_Read = tuple[Rule | RuleText, Node | None, Node | NeverTogether | None]

_PLAIN = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")  # read without the parser: price lists have thousands of these


def to_fraction(value: object, what: str) -> Fraction:
    """Return a finite number, or the text of one, as an exact rational: 0.1 is one tenth."""
    if isinstance(value, str):
        with located(value):
            return _text_number(value, what)
    result = exact_number(value)
    if result is None:
        raise RuleError(f"{what}: expected a finite number of reasonable size. Got {shown(value)}.")
    return result


def _text_number(text: str, what: str) -> Fraction:
    if _PLAIN.fullmatch(text):
        return Fraction(text)
    bare = text.strip().lower().lstrip("+-.")
    if bare in ("inf", "infinity", "nan"):
        raise RuleError(f"{what}: expected a finite number. Got '{text}'.")
    if is_date(text):
        raise RuleError(
            f"{what}: expected a number. Got '{text}', which is a date; dates go into ranges and conditions."
        )
    try:
        return number(parse(text))
    except RuleError:
        raise RuleError(f"{what}: expected a number. Got '{text[:80]}'.") from None


def check_keys(mapping: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Refuse unknown keys."""
    for key in mapping:
        if key not in known:
            with located(key):
                raise RuleError(f"{what}: unknown key '{key}'.{did_you_mean(str(key), tuple(known))}")


def build(
    parts: Mapping[str, Any], rules: Any, functions: Functions | None, about: Mapping[str, Any] | None
) -> Specification:
    """Build a Specification from its parts, by name, and its rules; see `Specification.build`."""
    stated = {name: empty if _is_empty(parts.get(name)) else parts[name] for name, empty in PARTS.items()}
    made_inputs = _inputs(stated["inputs"])
    made_outputs = _outputs(stated["outputs"], stated["labels"], stated["choices"])
    constants = _mapping(stated["constants"], "constants")
    made_constants = {_name(key, "constant"): to_fraction(v, f"Constant '{key}'") for key, v in constants.items()}
    made_tables = tuple(_tables(stated["tables"], made_inputs))
    with located(_clashing(name for part in stated.values() if isinstance(part, Iterable) for name in part)):
        spec = Specification(  # refuses names that clash
            made_inputs, made_outputs, (), tuple(made_constants.items()), tables=made_tables
        )
    members = {name for item in (*made_inputs, *made_outputs) for name in getattr(item, "categories", ())}
    members |= {name for item in made_outputs for name in getattr(item, "options", ())}
    with located(_clashing([*members, *constants])):
        names = Vocabulary(spec)
    try:
        read = [*_read_rules(rules, _own_functions(functions))]
        asked = {name for _, when, then in read for tree in (when, then) for name in _asked(tree)}
        if asked:
            spec = replace(spec, flags=tuple(item.name for item in made_inputs if item.name in asked))
            names = Vocabulary(spec)
        made = tuple(rule for item in read for rule in _compiled(*item, names))
        with located(_clashing(getattr(item, "name", None) for item in rules)):
            check_keys(about or {}, ABOUT, "about")
            finished = replace(spec, rules=made, about=about_of(about or {}, "Rules"))
        _ = finished.grid  # raises if a step or a range is missing
        return finished
    except RecursionError:  # the caller may already be deep in the stack
        raise RuleError("The rules are nested too deeply to be read here. Split them.") from None


def _is_empty(part: Any) -> bool:
    return part is None or (isinstance(part, str | Mapping | Sequence) and not part)


def _clashing(names: Iterable[object]) -> str | None:
    """Return the second of two names that are equal or look the same."""
    texts = [name for name in names if isinstance(name, str)]
    same = twins(texts)
    return None if same is None else [name for name in texts if name == same[1]][-1]


def _mapping(value: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        with located(value):
            raise RuleError(f"Expected '{what}' to be a mapping of names. Got {shown(value)}.")
    return value


def _name(name: object, kind: str) -> str:
    with located(name):
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 200:
            raise RuleError(f"Expected a printable name of 1 to 200 characters for the {kind}. Got {name!r:.80}.")
    return str(name)


def _names(items: Any, what: str, kind: str) -> tuple[str, ...]:
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        with located(items):
            raise RuleError(f"{what}: expected a list of names. Got {shown(items)}.")
    return tuple(_name(item, kind) for item in items)


def _inputs(inputs: Any) -> tuple[NumericInput | Categorical, ...]:
    if isinstance(inputs, Mapping):
        made = tuple(_input(name, stated) for name, stated in inputs.items())
    else:
        made = tuple(inputs) if isinstance(inputs, Iterable) and not isinstance(inputs, str) else ()
        if any(not isinstance(item, NumericInput | Categorical) for item in made) or (not made and inputs):
            with located(inputs):
                raise RuleError(f"Expected 'inputs' as a mapping of names to ranges. Got {shown(inputs)}.")
    if not made:
        raise RuleError("Expected at least one input, for example inputs: {speed: [0, 40]}. Got none.")
    return made


def _input(key: object, stated: Any) -> NumericInput | Categorical:
    name = _name(key, "input")
    what = f"Input '{name}'"
    with located(key):
        if isinstance(stated, NumericInput | Categorical):
            return stated
        if not isinstance(stated, Mapping):
            listed = isinstance(stated, Sequence) and not isinstance(stated, str) and len(stated) > 0
            words = listed and all(isinstance(v, str) for v in stated) and not hasattr(stated[0], "line")
            if words and all(map(is_date, stated)):
                raise RuleError(
                    f"{what}: two dates as text may be categories or a range. Write datetime.date(...) for a range, or "
                    "{'categories': [...]}."
                )
            stated = {"categories": stated} if words else {"range": stated}
        check_keys(stated, ("range", "integer", "step", "missing", "categories"), what)
        if ("range" in stated) == ("categories" in stated):
            raise RuleError(f"{what}: expected either a range [low, high] or categories. Got {shown(dict(stated))}.")
        missing = stated.get("missing")
        if isinstance(missing, str) and missing == "refuse":
            missing = None
        if "categories" in stated:
            return _categorical(name, stated, missing)
        return _numeric(name, stated, missing)


def _categorical(name: str, stated: Mapping[str, Any], missing: Any) -> Categorical:
    what = f"Input '{name}'"
    for key in ("integer", "step"):
        if key in stated:
            raise RuleError(f"{what}: '{key}' does not go with categories.")
    categories = _names(stated["categories"], what, "category")
    return Categorical(name, categories, None if missing is None else str(missing))


def _numeric(name: str, stated: Mapping[str, Any], missing: Any) -> NumericInput:
    what = f"Input '{name}'"
    ends = stated["range"]
    if isinstance(ends, str | Mapping) or not isinstance(ends, Sequence) or len(ends) != 2:
        several = isinstance(ends, Sequence) and not isinstance(ends, str)
        grouped = several and len(ends) > 2 and any(re.fullmatch("[0-9]{3}", str(end)) for end in ends[1:])
        hint = " Numbers have no commas: write 10_000 or 10000 for ten thousand." if grouped else ""
        if several and ends and not any(re.match(r"[-+.\d]", str(end)) for end in ends):
            hint = f" Texts are categories: write {name}: {{categories: [{', '.join(map(str, ends[:3]))}, ...]}}."
        raise RuleError(f"{what}: expected a range [low, high]. Got {shown(ends)}.{hint}")
    if any(map(is_date, ends)):
        return _dates(name, ends, stated, missing)
    lower, upper = (to_fraction(end, what) for end in ends)
    integer = _flag(stated.get("integer", False), f"{what}, integer")
    value = None if missing is None else to_fraction(missing, f"{what}, missing")
    return NumericInput(name, lower, upper, integer, value, step=_step(stated, what))


def _dates(name: str, ends: Sequence[Any], stated: Mapping[str, Any], missing: Any) -> NumericInput:
    what = f"Input '{name}'"
    for key in ("integer", "step"):
        if key in stated:
            raise RuleError(f"{what}: '{key}' does not go with dates, which are whole days.")
    days = []
    for value in (*ends, *(() if missing is None else (missing,))):
        with located(value):
            if not is_date(value):
                raise RuleError(f"{what}: expected dates such as 2020-01-31 throughout. Got '{value}'.")
            try:
                days.append(Fraction(day_of(value)))
            except RuleError as error:
                raise RuleError(f"{what}: {error}") from None
    low, high = days[:2]
    if low >= high:
        raise RuleError(f"{what}: expected a range of dates [first, last]. Got [{ends[0]}, {ends[1]}].")
    return NumericInput(name, low, high, True, days[2] if len(days) > 2 else None, dates=True)


def _step(stated: Mapping[str, Any], what: str) -> Fraction | None:
    return to_fraction(stated["step"], f"{what}, step") if "step" in stated else None


def _number(key: object, stated: Any) -> Number:
    """Read a real output: `{step: 0.01, range: [0, 100]}`, `{integer: true}` or `{}`."""
    name = _name(key, "output")
    what = f"Output '{name}'"
    with located(key):
        if isinstance(stated, Number):
            return stated
        if stated is None or stated == "":
            stated = {}
        if not isinstance(stated, Mapping):
            raise RuleError(f"{what}: expected {{step: ..., range: [low, high]}} or nothing. Got {shown(stated)}.")
        check_keys(stated, ("step", "integer", "range"), what)
        step = _step(stated, what)
        if _flag(stated.get("integer", False), f"{what}, integer"):
            if step is not None:
                raise RuleError(f"{what}: expected either 'integer' or 'step'. Got both.")
            step = Fraction(1)
        ends = stated.get("range")
        if ends is None:
            return Number(name, step)
        if isinstance(ends, str | Mapping) or not isinstance(ends, Sequence) or len(ends) != 2:
            raise RuleError(f"{what}: expected a range [low, high]. Got {shown(ends)}.")
        return Number(name, step, *(to_fraction(end, what) for end in ends))


def _flag(value: object, what: str) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise RuleError(f"{what}: expected true or false. Got {shown(value)}.")


def _outputs(numbers: Any, labels: Any, choices: Any) -> tuple[Number | Label | Choice, ...]:
    made: list[Number | Label | Choice] = []
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        _names(numbers, "outputs", "output")
    if isinstance(numbers, Mapping):
        numbers = [_number(name, stated) for name, stated in numbers.items()]
    for item in numbers:
        made.append(item if isinstance(item, Number | Label | Choice) else Number(_name(item, "output")))
    made += [Label(name) for name in _names(labels, "labels", "label")]
    for key, stated in _mapping(choices, "choices").items():
        name = _name(key, "choice")
        with located(key):
            options, pick = stated, "max"
            if isinstance(stated, Mapping):
                check_keys(stated, ("options", "pick"), f"Choice '{name}'")
                options, pick = stated.get("options", ()), stated.get("pick", "max")
            made.append(Choice(name, _names(options, f"Choice '{name}'", "option"), str(pick)))
    if not made:
        raise RuleError("Expected at least one output: outputs: [...], labels: [...] or choices: {...}. Got none.")
    return tuple(made)


def _tables(tables: Any, inputs: Sequence[NumericInput | Categorical]) -> Iterator[Table]:
    known = {item.name: item.categories for item in inputs if isinstance(item, Categorical)}
    for key, stated in _mapping(tables, "tables").items():
        name = _name(key, "table")
        with located(key):
            yield read_table(name, stated, known, to_fraction)


def _own_functions(functions: Functions | None) -> Functions:
    for name, function in (functions or {}).items():
        if not callable(function) or not str(name).isidentifier() or name in FUNCTIONS or name in KEYWORDS:
            raise RuleError(
                f"Expected functions by name, and none of the names {', '.join(FUNCTIONS)}. Got {str(name)[:60]!r}: "
                f"{type(function).__name__}."
            )
    return functions or {}


def _read_rules(rules: Any, functions: Functions) -> Iterator[_Read]:
    """Yield each rule with the trees of its `when` and `then`; errors name the line."""
    if isinstance(rules, str) or not isinstance(rules, Iterable):
        with located(rules):
            raise RuleError(f"Expected 'rules' to be a list of rules with name and then. Got {shown(rules)}.")
    items: Iterable[Any] = rules
    if isinstance(rules, Mapping):
        items = [_from_pair(name, stated) for name, stated in rules.items()]
    seen: set[str] = set()
    for index, item in enumerate(items):
        if not isinstance(item, Rule | RuleText):
            raise RuleError(f"Rule {index + 1}: expected rule(name, when=..., then=...). Got {shown(item)}.")
        with located(item.name):
            if item.name in seen:
                raise RuleError(f"Two rules are named '{item.name}'. Give each its own name.")
            seen.add(item.name)
            yield (item, *item.trees) if isinstance(item, Rule) else _read_text(item, functions)


def _from_pair(name: Any, stated: Any) -> Rule | RuleText:
    if isinstance(stated, Rule | RuleText):
        return stated
    if isinstance(stated, tuple | list) and len(stated) == 2:
        return RuleText(name, stated[0], stated[1])
    return RuleText(name, None, stated)


def _asked(tree: Node | NeverTogether | None) -> frozenset[str]:
    """Return the inputs that a tree tests with `is missing`."""
    nodes = nodes_in(tree) if isinstance(tree, Node) else ()
    return frozenset(node.operand.name for node in nodes if isinstance(node, Missing))


def _read_text(item: RuleText, functions: Functions) -> _Read:
    name = _name(item.name, "rule")
    when, then = item.when, item.then
    if isinstance(then, str) and when is None:
        return item, *_read(then, name, "then", functions, whole=True)
    made_when = None if when is None else _read(when, name, "when", functions)[1]
    return item, made_when, then if isinstance(then, NeverTogether) else _read(then, name, "then", functions)[1]


def _compiled(
    item: Rule | RuleText, when: Node | None, then: Node | NeverTogether | None, names: Vocabulary
) -> Iterator[Rule]:
    """Compile one rule; a lookup by several inputs at once gives several rules.

    A `Rule` that is already compiled is kept, unless it tests for missing values: its columns depend on the other
    rules. Errors name the line of `when` or `then`.
    """
    if isinstance(item, Rule) and (then is None or not (_asked(when) or _asked(then))):
        yield replace(item, regions=regions_of_rule(when, names)) if _asked(when) else item
        return
    parts: Iterable[tuple[str, Node | None, Any]] = [("", when, then)]
    if names.tables and isinstance(then, Node) and isinstance(item, RuleText):
        categories = {key: own.categories for key, own in names.inputs.items() if isinstance(own, Categorical)}
        parts = split(when, then, names.tables, categories)
    try:
        for suffix, own_when, own_then in parts:
            yield replace(compile_rule(str(item.name) + suffix, own_when, own_then, names), about=item.about)
    except RuleError as error:
        stated = item.when if str(error).startswith(f"Rule '{item.name}', when: ") else item.then
        with located(item.name), located(stated):
            raise


def _read(stated: Any, name: str, part: str, functions: Functions, *, whole: bool = False) -> tuple[Node | None, Node]:
    if isinstance(stated, Term | Condition | Node):
        return None, node_of(stated)
    if not isinstance(stated, str):
        raise RuleError(f"Rule '{name}', {part}: expected text or a condition. Got {shown(stated)}.")
    with located(stated):
        try:
            return parse_rule(stated, functions) if whole else (None, parse(stated, functions))
        except RuleError as error:
            raise RuleError(f"Rule '{name}', {part}: {error}") from None
