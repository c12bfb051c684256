"""A rule in words, from its tree, and as formulas in the rule language, from what it compiled to."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from smle.errors import RuleError
from smle.report.wording import exact_text, grouped_text, name_text
from smle.rules import About, Categorical, Choice, Label, Rule, Specification, clause_text, region_text
from smle.rules.affine import number as value_of
from smle.rules.expressions import (
    CASES,
    COUNTS,
    And,
    Call,
    Compare,
    Day,
    Implies,
    Lookup,
    Member,
    Missing,
    Name,
    Negative,
    Node,
    Not,
    Num,
    Or,
    Percent,
    Product,
    Sum,
    Truth,
    quote_name,
    to_text,
)
from smle.rules.lookups import lookups_in
from smle_check.names import visible

__all__ = ["rule_view", "rules_view", "words"]

_LONGEST = 400
_SPOKEN = 20_000  # longest text put in words; only the beginning is shown
_SHOWN = 8  # clauses and regions that a formula lists; others are counted

_SYMBOLS = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "="}
_PHRASES = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}

# Binding strengths, loosest first; a part that binds more loosely than its place allows gets parentheses. Unlike in the
# rule language, "and" inside "or" and both inside "implies" get parentheses: a sentence has no precedence.
_IMPLIES, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = range(1, 10)


def rules_view(spec: Specification, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what both pages show of rules, given a `rule_view` of each that is listed, with more about it."""
    return {
        "rules": rows,
        "rules_left_out": len(spec.rules) - len(rows),
        "about": _about_view(spec.about),
        "constants": _named_numbers(spec),
        "labels": any(isinstance(output, Label) for output in spec.outputs),
    }


def _named_numbers(spec: Specification) -> list[tuple[str, str]]:
    """Return constants with their values, and tables with how many numbers they hold."""
    found = [(visible(name), exact_text(value)) for name, value in spec.constants]
    for table in spec.tables:
        ends = " to ".join(exact_text(value) for value in (min(table.values), max(table.values)))
        found.append((visible(f"{table.name}[{', '.join(table.keys)}]"), f"{len(table.values):,} numbers, {ends}"))
    return found


def words(rule: Rule, spec: Specification) -> str:
    """Write a rule as a sentence, with the value after each constant."""
    speaker = _Speaker(spec)
    condition, requirement = rule.trees
    then = speaker.part(requirement, rule.then, _IMPLIES)
    sentence = (
        f"Always: {then}" if rule.when is None else f"When {speaker.part(condition, rule.when, _OR)}, then {then}"
    )
    return sentence + "."


def rule_view(rule: Rule, spec: Specification) -> dict[str, Any]:
    """Return what both pages show of a rule: its name, its words, and its condition and clauses as formulas."""
    first, *more = _requirement(rule, spec)
    lines = [f"{_condition(rule, spec)}  ⟹  {first}", *(f"and {line}" for line in more)]
    return {"name": visible(rule.name), "words": words(rule, spec), "formula": lines, "about": _about_view(rule.about)}


def _about_view(about: About) -> list[tuple[str, str]]:
    """Return the metadata of a rule or a file, for readers."""
    return [(what.capitalize(), visible(text)) for what, text in about]


def _condition(rule: Rule, spec: Specification) -> str:
    if any(not region.rows for region in rule.regions):
        return "every input of the domain"
    # The lookup's name says more than a term for each category.
    if rule.when is not None and any(lookups_in(rule.trees[0])):
        return rule.when
    regions = [region_text(spec, region) for region in rule.regions[:_SHOWN]]
    more = f" or … ({len(rule.regions) - _SHOWN:,} more regions)" if len(rule.regions) > _SHOWN else ""
    return (regions[0] if len(regions) == 1 else " or ".join(f"({region})" for region in regions)) + more


def _requirement(rule: Rule, spec: Specification) -> list[str]:
    """Return what a rule requires, one clause per line; long lists are summarized, and tables are named."""
    if any(lookups_in(rule.trees[1])):
        return [rule.then]
    lines = [clause_text(spec, clause) for clause in rule.requirement.clauses[:_SHOWN]]
    if len(rule.requirement.clauses) > _SHOWN:
        lines.append(f"… {len(rule.requirement.clauses) - _SHOWN:,} more clauses")
    pairs = rule.requirement.exclusions
    for h, k in pairs[: 3 if len(pairs) > _SHOWN else _SHOWN].tolist():
        lines.append(f"not ({quote_name(visible(spec.targets[h]))} and {quote_name(visible(spec.targets[k]))})")
    if len(pairs) > _SHOWN:
        labels = len(set(pairs.reshape(-1).tolist()))
        lines.append(f"… {len(pairs):,} pairs of {labels:,} labels in all that never occur together")
    return lines


class _Speaker:
    """Prints trees in the words of one specification."""

    def __init__(self, spec: Specification) -> None:
        self._constants = dict(spec.constants)
        self._groups = {o.name for o in (*spec.inputs, *spec.outputs) if isinstance(o, Categorical | Choice)}

    def part(self, tree: Node | None, text: str, level: int) -> str:
        """Return the `when` or `then` of a rule in words, or its text if it has no tree or is very long."""
        if tree is not None and len(text) <= _SPOKEN:
            text = self._at(tree, level)
        return text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(" ", 1)[0] + " … (shortened)"

    def _at(self, node: Node, level: int) -> str:
        text, binding = self._say(node)
        return text if binding >= level else f"({text})"

    def _say(self, node: Node) -> tuple[str, int]:
        """Return the text and the binding strength of its outermost operator."""
        match node:
            case Percent() | Day() | Lookup():
                return to_text(node), _ATOM
            case Num(value=value):
                return exact_text(value), _ATOM
            case Name(name=name):
                return self._name(name, inside=True), _ATOM
            case Negative(operand=operand):
                return f"−{self._at(operand, _ATOM)}", _UNARY
            case Product(factors=factors):
                (_, first), *rest = factors
                more = (f" {'·' if op == '*' else '/'} {self._at(factor, _ATOM)}" for op, factor in rest)
                return self._at(first, _UNARY) + "".join(more), _PRODUCT
            case Sum(terms=terms):
                (_, first), *tail = terms
                signed = (f" {'+' if sign > 0 else '−'} {self._term(term)}" for sign, term in tail)
                return self._at(first, _PRODUCT) + "".join(signed), _SUM
            case Call(function=function, arguments=arguments) if function in COUNTS:
                phrase = function.replace("_", " ")
                if not function.endswith("_one"):
                    phrase, arguments = f"{phrase} {self._alone(arguments[0])}", arguments[1:]
                inside = ", ".join(self._at(a, _IMPLIES) for a in arguments)
                return f"{phrase} of ({inside})", _OR  # its "at most" never follows an "and"
            case Call(function=function, arguments=arguments) if function in CASES:
                return f"{function}({', '.join(self._at(a, _IMPLIES) for a in arguments)})", _ATOM
            case Call(function=function, arguments=arguments):
                return f"{function}({', '.join(map(_as_written, arguments))})", _ATOM
        return self._say_condition(node)

    def _say_condition(self, node: Node) -> tuple[str, int]:
        match node:
            case Compare():
                return self._compare(node)
            case Member(operand=operand, options=options):
                return f"{self._at(operand, _SUM)} is one of [{', '.join(map(_as_written, options))}]", _COMPARE
            case Not(operand=Member(operand=operand, options=options)):
                return f"{self._at(operand, _SUM)} is not one of [{', '.join(map(_as_written, options))}]", _COMPARE
            case Missing(operand=operand):
                return f"{name_text(operand.name)} is missing", _COMPARE
            case Not(operand=Missing(operand=operand)):
                return f"{name_text(operand.name)} is known", _COMPARE
            case Not(operand=operand):
                return f"not {self._at(operand, _UNARY)}", _NOT
            case And(parts=parts):
                return " and ".join(self._at(p, _AND) for p in parts), _AND
            case Or(parts=parts):
                return " or ".join(self._at(p, _NOT) for p in parts), _OR
            case Implies(condition=condition, conclusion=conclusion):
                return f"{self._at(condition, _NOT)} implies {self._at(conclusion, _NOT)}", _IMPLIES
        assert isinstance(node, Truth)
        return ("true" if node.value else "false"), _ATOM

    def _compare(self, node: Compare) -> tuple[str, int]:
        texts = [self._operand(node, index) for index in range(len(node.operands))]
        if len(texts) == 2:
            phrase = {"==": "is", "!=": "is not"}.get(node.operators[0]) or f"is {_PHRASES[node.operators[0]]}"
            return f"{texts[0]} {phrase} {texts[1]}", _COMPARE
        signs = [sign.rstrip("=") for sign in node.operators]
        if signs in (["<", "<"], [">", ">"]):
            return self._enclosed(node, texts)
        symbols = (f" {_SYMBOLS.get(sign, sign)} {text}" for sign, text in zip(node.operators, texts[1:], strict=True))
        return texts[0] + "".join(symbols), _COMPARE

    def _enclosed(self, node: Compare, texts: list[str]) -> tuple[str, int]:
        """Say `a <= b <= c`, with "between" only for ascending numbers, since the word does not say the order."""
        ends = list(zip(node.operands[::2], texts[::2], node.operators, strict=True))
        if node.operators[0].startswith(">"):
            ends.reverse()
        (low, low_text, above), (high, high_text, below) = ends
        values = [value for value in (self._value(low), self._value(high)) if value is not None]
        if above.endswith("=") and below.endswith("=") and len(values) == 2 and values[0] <= values[1]:
            return f"{texts[1]} is between {low_text} and {high_text}", _COMPARE
        phrases = "at least" if above.endswith("=") else "above", "at most" if below.endswith("=") else "below"
        return f"{texts[1]} is {phrases[0]} {low_text} and {phrases[1]} {high_text}", _AND

    def _operand(self, node: Compare, index: int) -> str:
        """Write an operand; next to a categorical input or a choice it is a category or option, never a constant."""
        operand = node.operands[index]
        beside = node.operands[max(index - 1, 0) : index + 2]
        if any(isinstance(other, Name) and other.name in self._groups for other in beside):
            return _as_written(operand)
        return self._alone(operand)

    def _alone(self, node: Node) -> str:
        """Write a number that stands alone, with groups of three digits from 10,000 on."""
        if isinstance(node, Num) and not isinstance(node, Percent):
            return grouped_text(node.value)
        if isinstance(node, Negative) and isinstance(node.operand, Num) and not isinstance(node.operand, Percent):
            return grouped_text(-node.operand.value)
        return self._name(node.name, inside=False) if isinstance(node, Name) else self._at(node, _SUM)

    def _term(self, term: Node) -> str:
        text = self._at(term, _PRODUCT)
        return f"({text})" if text.startswith("−") else text

    def _name(self, name: str, *, inside: bool) -> str:
        """Write a name, a constant with its value. Inside a formula, `=` keeps the value from reading as a factor."""
        if name not in self._constants:
            return name_text(name)
        return f"{name_text(name)} ({'= ' if inside else ''}{exact_text(self._constants[name])})"

    def _value(self, node: Node) -> Fraction | None:
        try:
            return value_of(node, self._constants)
        except RuleError:
            return None


def _as_written(node: Node) -> str:
    """Write a category or an option; anything else as in the rule."""
    match node:
        case Name(name=name):
            return name_text(name)
        case Negative(operand=Num(value=value)):
            return exact_text(-value)
    return to_text(node)
