"""Reads rule text into expression trees, by precedence climbing.

    formula     = or-part [ "implies" formula ]
    or-part     = and-part { "or" and-part }
    and-part    = not-part { "and" not-part }
    not-part    = "not" not-part | comparison
    comparison  = sum { ("<=" | "<" | ">=" | ">" | "==" | "!=" | "<>") sum } | sum ["not"] "in" "[" sum { "," sum } "]"
                | name "is" ["not"] ("missing" | "known")
    sum         = product { ("+" | "-") product }
    product     = unary { ("*" | "/") unary }
    unary       = ["-" | "+"] unary | number ["%"] | date | name | name "[" sum { "," sum } "]" | "(" formula ")"
                | function "(" formula { "," formula } ")"

Nothing is evaluated. Length and nesting are bounded, so no text can exhaust the stack. A call of a user's function is
replaced by the tree it returns, so the rule does not depend on the function afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from smle.errors import RuleError
from smle.rules.dates import DATE_LIKE, day_of
from smle.rules.expressions import (
    FUNCTIONS,
    KEYWORDS,
    MAX_DEPTH,
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
    Percent,
    Truth,
    add,
    conjunction,
    disjunction,
    multiply,
    quote,
)
from smle.rules.instead import INSTEAD, instead_of_function, instead_of_word
from smle.rules.operators import expression_of, node_of

__all__ = ["MAX_TEXT", "Functions", "parse", "parse_rule"]

MAX_TEXT = 2_000_000
"""Longest rule text, in characters."""

_MAX_DIGITS = 400
_MAX_EXPONENT = 390

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    rf"|(?P<date>{DATE_LIKE})"
    r"|(?P<number>(?:[0-9]{1,3}(?:_[0-9]{3})+(?:\.[0-9]*)?|[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<quoted>`(?:[^`]|``)*`|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|(?P<operator><=|>=|==|!=|<>|->|\*\*|&&|\|\||[<>+\-*/()\[\],=&|!^%~≤≥≠])"
)
_COMPARISONS = {sign: sign for sign in ("<=", "<", ">=", ">", "==", "!=")}
_COMPARISONS |= {"≤": "<=", "≥": ">=", "≠": "!=", "<>": "!="}
_SIDES = 60  # characters of a side that an error message repeats
_BINDING = {
    "implies": 1,
    "or": 2,
    "and": 3,
    "in": 5,
    "not": 5,
    "+": 6,
    "-": 6,
    "*": 7,
    "/": 7,
    **dict.fromkeys(_COMPARISONS, 5),
}


@dataclass(frozen=True)
class _Token:
    kind: str  # number, date, name, quoted, operator (keywords included), end
    text: str
    start: int
    end: int


Functions = Mapping[str, Callable[..., Any]]
"""User functions, by name: they take numbers, terms and conditions, and return one of these."""


def parse(text: str, functions: Functions | None = None) -> Node:
    """Read one formula. A RuleError says where the text departs from the grammar, and what to write instead."""
    parser = _Parser(text, functions)
    return parser.closed(parser.expression(1))


def parse_rule(text: str, functions: Functions | None = None) -> tuple[Node | None, Node]:
    """Read `when -> then`, or `then` alone."""
    parser = _Parser(text, functions)
    first = parser.expression(1)
    if parser.current.text != "->" or parser.current.kind != "operator":
        return None, parser.closed(first)
    parser.advance()
    return first, parser.closed(parser.expression(1))


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_TEXT:
        raise RuleError(f"Expected a rule of at most {MAX_TEXT:,} characters. Got {len(text):,}.")
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            character = text[position]
            if character in "`'\"":
                raise RuleError(f"Expected a closing {character} for the name that starts at {_near(text, position)}.")
            hint = f" {INSTEAD.get(character, '')}".rstrip()
            raise RuleError(f"Unexpected character {character!r} at {_near(text, position)}.{hint}")
        kind, start, position = str(match.lastgroup), position, match.end()
        word = match.group()
        if kind == "name" and word in KEYWORDS:
            kind = "operator"
        if kind != "space":
            tokens.append(_Token(kind, word, start, position))
    tokens.append(_Token("end", "", len(text), len(text)))
    return tokens


def _near(text: str, position: int) -> str:
    left, right = max(0, position - 30), min(len(text), position + 30)
    excerpt = ("... " if left else "") + text[left:right] + (" ..." if right < len(text) else "")
    return f"character {position + 1} of {excerpt!r}"


class _Parser:
    """One pass over the tokens of one text."""

    def __init__(self, text: str, functions: Functions | None) -> None:
        self._text = text
        self._functions = functions or {}
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0
        if len(self._tokens) == 1:
            raise RuleError("Expected a condition. Got an empty text.")

    @property
    def current(self) -> _Token:
        return self._tokens[self._index]

    def advance(self) -> _Token:
        token = self.current
        self._index += 1
        return token

    def _sees(self, text: str, ahead: int = 0) -> bool:
        token = self._tokens[min(self._index + ahead, len(self._tokens) - 1)]
        return token.kind == "operator" and token.text == text

    def _accept(self, text: str) -> bool:
        if self._sees(text):
            self._index += 1
            return True
        return False

    def _fail(self, expected: str) -> RuleError:
        token = self.current
        if token.kind == "end":
            return RuleError(f"Expected {expected}. The text ends after {self._text[-40:].strip()!r}.")
        advice = self._advice(token, self._tokens[self._index - 1] if self._index else None)
        return RuleError(
            f"Expected {expected}, got '{token.text[:40]}' at {_near(self._text, token.start)}. {advice}".rstrip()
        )

    def _advice(self, token: _Token, before: _Token | None) -> str:
        """Return what to write instead of an unexpected token, or nothing."""
        if before is not None and before.kind == "number" and (token.kind == "number" or token.text == ","):
            return self._ungrouped(before, token)
        if token.kind == "operator":
            turned = next((sign for sign in "<>" if token.text == "=" and self._sees(sign, 1)), None)
            return INSTEAD.get(token.text, "") if turned is None else f"Write '{turned}='."
        if token.kind != "name" or before is None:
            return ""
        lowered = token.text.lower()
        if lowered in KEYWORDS:
            return f"Write '{lowered}' in lower case."
        following = tuple(t.text.lower() for t in self._tokens[self._index + 1 : self._index + 20])
        known = instead_of_word(lowered, before.text, following, self._sides(token))
        if known is not None:
            return known
        if before.kind == "number" and token.text.startswith("_"):
            return f"Write '{before.text}{token.text.replace('_', '')}': digits are grouped by three."
        if before.kind == "number":
            return f"Write '{before.text} * {token.text}' to multiply; units are not written."
        if before.kind == "name":
            return f"A name with spaces goes in backticks: `{before.text} {token.text}`."
        return ""

    def _sides(self, token: _Token) -> tuple[str, str] | None:
        """Return the texts left and right of a token, if it is outside all parentheses and they are short."""
        left, right = self._text[: token.start].strip(), self._text[token.end :].strip()
        inside = left.count("(") != left.count(")") or left.count("[") != left.count("]")
        return None if inside or not left or not right or max(len(left), len(right)) > _SIDES else (left, right)

    def _ungrouped(self, before: _Token, token: _Token) -> str:
        """Suggest how to write `10,000`, `0,4` or `10 000`."""
        after = self._tokens[self._index + 1] if token.text == "," else token
        if after.kind != "number":
            return ""
        if before.text.endswith(".") and after.text.startswith("."):
            return f"Write '{before.text[:-1]} <= ... <= {after.text[1:]}' for a range."
        if token.text == "," and (len(after.text) != 3 or before.text == "0"):
            return f"Write '{before.text}.{after.text}', with a point."
        whole = f"{before.text}{after.text}"
        if after.text.startswith("."):
            return f"Write '{whole.replace('.', '')}', or '{whole.replace('.', '_')}': a point is for decimals."
        grouped = f", or '{int(whole):_}'" if whole.isdecimal() and len(whole) < 30 else ""
        return f"Write '{whole}'{grouped}: numbers have no commas and no spaces."

    def closed(self, node: Node) -> Node:
        if self.current.kind != "end":
            raise self._fail("an operator or the end")
        return node

    def expression(self, level: int) -> Node:
        """Read an expression whose operators bind at least as strongly as `level`."""
        self._depth += 1
        if self._depth > 2 * MAX_DEPTH + 2:  # one level of the tree takes two calls: the operand and its parentheses
            raise RuleError(f"Expected at most {MAX_DEPTH} levels of nesting. Got more. Split the rule into several.")
        start = self.current.start
        left = self._prefix()
        while True:
            token = self.current
            if token.kind == "operator" and token.text in ("**", "^"):
                raise self._power(start)
            if level <= 5 and self._asks_for_missing():
                left = self._missing(left)
                continue
            binding = _BINDING.get(token.text, 0) if token.kind == "operator" else 0
            if binding < max(level, 1) or (token.text == "not" and not self._sees("in", 1)):
                break
            left = self._infix(left, token.text, binding)
        self._depth -= 1
        return left

    def _asks_for_missing(self) -> bool:
        """Return whether `is [not] missing` or `is [not] known` follows; elsewhere these words may be names."""
        if self.current.kind != "name" or self.current.text != "is":
            return False
        after = self._tokens[min(self._index + 1 + self._sees("not", 1), len(self._tokens) - 1)]
        return after.kind == "name" and after.text in ("missing", "known")

    def _missing(self, left: Node) -> Node:
        if not isinstance(left, Name):
            raise RuleError(f"Expected the name of an input in front of 'is missing' or 'is known'. Got {quote(left)}.")
        self.advance()
        negated = self._accept("not")
        asked = Missing(left)
        return Not(asked) if (self.advance().text == "known") != negated else asked

    def _power(self, start: int) -> RuleError:
        self.advance()
        self._prefix()
        text = self._text[start : self._tokens[self._index - 1].end]
        return RuleError(f"Not linear: '{text[:80]}' is a power. Rules are linear.")

    def _infix(self, left: Node, operator: str, binding: int) -> Node:
        if operator == "implies":
            self.advance()
            return Implies(left, self.expression(1))
        if operator in ("and", "or"):
            parts = [left]
            while self._accept(operator):
                parts.append(self.expression(binding + 1))
            return conjunction(parts) if operator == "and" else disjunction(parts)
        if binding == 5:
            return self._comparison(left)
        more: list[tuple[str, Node]] = []
        while self.current.kind == "operator" and _BINDING.get(self.current.text) == binding:
            sign = self.advance().text
            more.append((sign, self.expression(binding + 1)))
        if binding == 6:
            _refuse_percent_in_sum(left, more)
            return add(left, ((1 if sign == "+" else -1, term) for sign, term in more))
        return multiply(left, more)

    def _comparison(self, left: Node) -> Node:
        if self._sees("in") or self._sees("not"):
            negated = self._accept("not")
            self.advance()
            if not self._accept("["):
                raise self._fail("a list after 'in', as in [1, 2, 3]")
            options = self._list("]", 6)
            member = Member(left, options)
            return Not(member) if negated else member
        operands, operators = [left], []
        while self.current.kind == "operator" and self.current.text in _COMPARISONS:
            operators.append(_COMPARISONS[self.advance().text])
            operands.append(self.expression(6))
        return Compare(tuple(operands), tuple(operators))

    def _list(self, closing: str, level: int) -> tuple[Node, ...]:
        items = [self.expression(level)]
        while self._sees(","):
            self._refuse_grouped()
            self.advance()
            items.append(self.expression(level))
        if not self._accept(closing):
            raise self._fail(f"',' or '{closing}'")
        return tuple(items)

    def _refuse_grouped(self) -> None:
        """Refuse `[10,000, 20,000]`, which could be two numbers or four."""
        before, comma, after = self._tokens[self._index - 1 : self._index + 2]
        digits = before.text.isdecimal() and len(before.text) < 4 and after.text.isdecimal() and len(after.text) == 3
        if digits and before.kind == "number" and before.end == comma.start and comma.end == after.start:
            raise RuleError(
                f"'{before.text},{after.text}' may be one number or two. Write '{before.text}_{after.text}', or "
                f"'{before.text}, {after.text}'."
            )

    def _is_percent(self) -> bool:
        """Return whether the current `%` means percent rather than remainder: no operand follows it."""
        after = self._tokens[min(self._index + 1, len(self._tokens) - 1)]
        return self._sees("%") and after.kind in ("operator", "end") and after.text != "("

    def _prefix(self) -> Node:
        token = self.current
        if token.kind == "number":
            self.advance()
            if self._sees("%") and self._tokens[self._index + 1].text.lower() == "of":
                base = self._tokens[min(self._index + 2, len(self._tokens) - 1)].text
                place = _near(self._text, token.start)
                raise RuleError(f"Write '{token.text} % * {base}' instead of '{token.text} % of {base}' at {place}.")
            value = _number(token.text)
            return Percent(value / 100) if self._is_percent() and self.advance() else Num(value)
        if token.kind == "date":
            self.advance()
            return Day(day_of(token.text))
        if token.kind == "quoted":
            self.advance()
            mark = token.text[0]
            name = token.text[1:-1].replace(mark * 2, mark)
            if not name or not name.isprintable():
                raise RuleError(f"Expected a printable name between quotes. Got {token.text[:60]!r}.")
            return self._looked_up(name)
        if token.kind == "name":
            self.advance()
            return self._call(token.text) if self._accept("(") else self._looked_up(token.text)
        if token.kind == "operator":
            if token.text in ("true", "false"):
                self.advance()
                return Truth(token.text == "true")
            if self._accept("not"):
                return Not(self.expression(4))
            if self._accept("-"):
                return Negative(self.expression(8))
            if self._accept("+"):
                return self.expression(8)
            if self._accept("("):
                inner = self.expression(1)
                if not self._accept(")"):
                    raise self._fail("')'")
                return inner
        raise self._fail("a number, a name or '('")

    def _looked_up(self, name: str) -> Node:
        return Lookup(name, self._list("]", 6)) if self._accept("[") else Name(name)

    def _call(self, function: str) -> Node:
        known = (*FUNCTIONS, *self._functions)
        if function not in known:
            raise RuleError(f"Unknown function '{function[:60]}'.{instead_of_function(function, known)}")
        if self._sees(")"):
            raise RuleError(f"Expected an argument in '{function}()'.")
        arguments = self._list(")", 1)
        if function in self._functions:
            return _expanded(function, self._functions[function], arguments)
        return Call(function, arguments)


def _expanded(name: str, function: Callable[..., Any], arguments: tuple[Node, ...]) -> Node:
    """Call a user's function on its arguments and return the resulting tree."""
    try:
        return node_of(function(*map(expression_of, arguments)))
    except RuleError as error:
        raise RuleError(f"In '{name}(...)': {error}") from error
    except Exception as error:  # a user's function may raise anything
        raise RuleError(f"The function '{name}' failed: {type(error).__name__}: {error}.") from error


def _refuse_percent_in_sum(left: Node, more: list[tuple[str, Node]]) -> None:
    """Refuse `price + 10 %`, often meant as `price * 1.1`; `1 + 10 %` is the same either way."""
    terms = [(1, left), *((1 if sign == "+" else -1, term) for sign, term in more)]
    shares = [(sign, term) for sign, term in terms if isinstance(term, Percent)]
    bases = [(sign, term) for sign, term in terms if not isinstance(term, Percent)]
    if not shares or all(term == Num(Fraction(1)) for _, term in bases):
        return
    (sign, share), ((_, first), *rest) = shares[0], bases
    base = add(first, rest)
    scaled = multiply(node_of(1 + sign * share.value), [("*", base)])
    stated, plain = (quote(add(base, [(sign, part)])) for part in (share, Num(share.value)))
    raise RuleError(f"{stated} may mean {quote(scaled)} or {plain}. Write the one that you mean.")


def _number(text: str) -> Fraction:
    exponent = text.lower().partition("e")[2]
    if len(text) > _MAX_DIGITS or len(exponent) > 6 or abs(int(exponent or 0)) > _MAX_EXPONENT:
        raise RuleError(f"Expected a number of reasonable size. Got '{text[:30]}{'...' if len(text) > 30 else ''}'.")
    return Fraction(text.replace("_", ""))
