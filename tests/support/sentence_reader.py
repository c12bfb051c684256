"""Reads sentences and formulas of the report as a careful person would, without anything of the package.

A sentence has no precedence: "and", "or" and "implies" must not be mixed without parentheses, and "between" does not
say which end is the lower one.
"""

import re
from fractions import Fraction

_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)*`)|(\d+(?:\.\d+)?(?:e[+−-]?\d+)?)|([^\W\d]\w*)|(<=|>=|==|!=|[()\[\],+−·/=≤≥≠<>*-]))"
)
_WORDS = {"above", "and", "at", "below", "between", "exactly", "false", "implies", "in", "is", "least", "most", "not"}
_WORDS |= {"of", "one", "or", "then", "true", "when"}
_JOINERS = {"and": all, "or": any}
_SIGNS = {
    "≤": lambda a, b: a <= b,
    "≥": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "=": lambda a, b: a == b,
    "≠": lambda a, b: a != b,
}
_ASCII = {"<=": "≤", ">=": "≥", "==": "=", "!=": "≠", "*": "·", "-": "−"}  # formulas are in the rules language


class UnreadableError(Exception):
    """The text is no sentence, or could be read in two ways."""


def read_sentence(sentence, world):
    """Return (when, then) of `When ..., then ....` or `Always: ...`, as truth values in a world."""
    if sentence.startswith("Always: "):
        return True, read(sentence.removeprefix("Always: ").removesuffix("."), world)
    reader = _Reader(sentence.removeprefix("When ").removesuffix("."), world)
    when = reader.condition()
    reader.expect(",")
    reader.expect("then")
    return when, reader.ended(reader.condition())


def read(text, world, words=_WORDS):
    """Return whether a condition or formula holds in a world: `numbers`, `constants`, `picked` and `labels`."""
    reader = _Reader(text, world, words)
    return reader.ended(reader.condition())


class _Reader:
    def __init__(self, text, world, words=_WORDS):
        self.tokens, self.at, self.world, position = [], 0, world, 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise UnreadableError(text[position:])
            quoted, number, word, symbol = match.groups()
            kind = "name" if quoted or (word and word not in words) else "number" if number else "other"
            self.tokens.append(
                (kind, quoted[1:-1].replace("``", "`") if quoted else number or word or _ASCII.get(symbol, symbol))
            )
            position = match.end()
        self.tokens += [("end", "")] * 3

    def sees(self, *texts):
        return [text for kind, text in self.tokens[self.at : self.at + len(texts)] if kind == "other"] == list(texts)

    def accept(self, *texts):
        if not self.sees(*texts):
            return False
        self.at += len(texts)
        return True

    def expect(self, *texts):
        if not self.accept(*texts):
            raise UnreadableError(f"{texts} expected, {self.tokens[self.at :]} found")

    def name(self):
        kind, text = self.tokens[self.at]
        if kind != "name":
            raise UnreadableError(f"a name expected, {self.tokens[self.at :]} found")
        self.at += 1
        return text

    def ended(self, value):
        if self.tokens[self.at][0] != "end":
            raise UnreadableError(f"{self.tokens[self.at :]} left over")
        return value

    def condition(self):
        parts = [self.part()]
        if self.accept("implies"):
            parts.append(self.part())
            return not parts[0] or parts[1]
        joiner = next((j for j in _JOINERS if self.sees(j)), None)
        while joiner and self.accept(joiner):
            parts.append(self.part())
        if any(self.sees(other) for other in (*_JOINERS, "implies")):
            raise UnreadableError("mixed without parentheses")
        return _JOINERS[joiner](parts) if joiner else parts[0]

    def part(self):
        if self.accept("not"):
            return not (self.inside() if self.sees("(") else self.label())
        if self.accept("true") or self.accept("false"):
            return self.tokens[self.at - 1][1] == "true"
        for phrase, sign in ((("at", "most"), "≤"), (("at", "least"), "≥"), (("exactly",), "=")):
            if self.accept(*phrase):
                count = 1 if self.accept("one") else self.sum()
                self.expect("of")
                return _SIGNS[sign](sum(self.list("(", ")", self.condition)), count)
        start = self.at
        try:
            return self.comparison()
        except UnreadableError:
            self.at = start
        return self.inside() if self.sees("(") else self.label()

    def label(self):
        name = self.name()
        if name not in self.world["labels"]:
            raise UnreadableError(f"{name} is no label")
        return self.world["labels"][name]

    def inside(self):
        self.expect("(")
        value = self.condition()
        self.expect(")")
        return value

    def list(self, opening, closing, item):
        self.expect(opening)
        items = [item()]
        while self.accept(","):
            items.append(item())
        self.expect(closing)
        return items

    def comparison(self):
        kind, name = self.tokens[self.at]
        if kind == "name" and name in self.world["picked"]:
            self.at += 1
            return self.picked(self.world["picked"][name])
        left = self.sum()
        if self.accept("is"):
            return self.phrases(left)
        values, holds = [left], []
        while sign := next((s for s in _SIGNS if self.accept(s)), None):
            values.append(self.sum())
            holds.append(_SIGNS[sign](values[-2], values[-1]))
        if not holds:
            raise UnreadableError("no comparison")
        return all(holds)

    def picked(self, value):
        if self.accept("is", "one") or self.accept("is", "not", "one"):
            negated = self.tokens[self.at - 2][1] == "not"
            self.expect("of")
            return (value in self.list("[", "]", self.name)) != negated
        negated = self.accept("is", "not") or self.accept("≠")
        if not negated and not self.accept("is"):
            self.expect("=")
        return (value == self.name()) != negated

    def phrases(self, left):
        if self.accept("between"):
            ends = [self.sum()]
            self.expect("and")
            ends.append(self.sum())
            return min(ends) <= left <= max(ends)
        if self.accept("not"):
            return left != self.sum()
        sign = self.phrase()
        if sign is None:
            return left == self.sum()
        holds = _SIGNS[sign](left, self.sum())
        start = self.at
        if self.accept("and"):
            sign = None if self.sees("at", "most", "one") or self.sees("at", "least", "one") else self.phrase()
            if sign is not None:
                also = _SIGNS[sign](left, self.sum())
                if self.sees("of"):
                    raise UnreadableError("a count that reads like a second limit")
                return also and holds
            self.at = start
        return holds

    def phrase(self):
        known = {("at", "most"): "≤", ("at", "least"): "≥", ("below",): "<", ("above",): ">"}
        return next((sign for phrase, sign in known.items() if self.accept(*phrase)), None)

    def sum(self):
        value = self.product()
        while self.sees("+") or self.sees("−"):
            sign = 1 if self.accept("+") else -1
            self.at += sign < 0
            value += sign * self.product(signed=False)
        return value

    def product(self, signed=True):
        value = -self.atom() if signed and self.accept("−") else self.atom()
        while self.sees("·") or self.sees("/"):
            if self.accept("·"):
                value *= self.atom()
            else:
                self.expect("/")
                value /= self.atom()
        return value

    def atom(self):
        kind, text = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            return Fraction(text.replace("−", "-"))
        if self.accept("("):
            value = self.sum()
            self.expect(")")
            return value
        name = self.name()
        if name == "abs" and self.sees("("):
            return abs(self.atom())
        if name in ("max", "min") and self.sees("("):
            return (max if name == "max" else min)(self.list("(", ")", self.sum))
        if name in self.world["constants"]:
            self.expect("(")
            self.accept("=")
            value = self.sum()
            self.expect(")")
            if value != self.world["constants"][name]:
                raise UnreadableError(f"{name} is {value}")
            return value
        if name not in self.world["numbers"]:
            raise UnreadableError(f"{name} is no number")
        return self.world["numbers"][name]
