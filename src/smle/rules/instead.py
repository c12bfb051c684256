"""Advice for words, signs and functions of other languages that the rule language does not have."""

from __future__ import annotations

import difflib

__all__ = ["INSTEAD", "did_you_mean", "instead_of_function", "instead_of_word"]

_SIGNS = {
    **dict.fromkeys(("equals", "equal"), "=="),
    **dict.fromkeys(("above", "over", "exceeds", "greater", "more", "larger"), ">"),
    **dict.fromkeys(("below", "under", "less", "smaller", "fewer"), "<"),
    "least": ">=",
    "most": "<=",
}
_JOINED = {
    "xor": "exactly_one({left}, {right})",
    "iff": "({left} implies {right}) and ({right} implies {left})",
    "unless": "not ({right}) implies {left}",
}
_CLAUSES = {"if", "when", "then", "where", "else", "otherwise", "given"}
_ABSENT = {"missing", "null", "none", "nan", "na", "empty", "unknown", "absent"}
_PRESENT = {"known", "present", "given", "available", "there", "notna", "notnull"}

_CURVED = {
    *("log", "ln", "log2", "log10", "log1p", "exp", "sqrt", "pow", "square", "sin", "cos", "tan", "tanh", "sigmoid"),
    *("softmax", "round", "floor", "ceil", "ceiling", "trunc", "int", "sign", "mod", "std", "var", "median"),
}
_RELATIONS = {"monotone", "monotonic", "increasing", "decreasing", "nondecreasing", "nonincreasing", "lag", "diff"}
_CALLS = {
    **dict.fromkeys(("maximum", "largest", "greatest"), "max(a, b)"),
    **dict.fromkeys(("minimum", "smallest", "least"), "min(a, b)"),
    "sum": "a + b",
    **dict.fromkeys(("mean", "avg", "average"), "(a + b) / 2"),
    **dict.fromkeys(("between", "clip", "clamp"), "low <= a <= high"),
    "isin": "a in [1, 2, 3]",
    "xor": "exactly_one(a, b)",
    "iff": "(a implies b) and (b implies a)",
    "unless": "not (b) implies a",
    **dict.fromkeys(("if", "ifelse", "iff_then", "where", "when"), "CONDITION implies CONCLUSION"),
    **dict.fromkeys(("any", "any_of", "either"), "at_least_one(a, b)"),
    **dict.fromkeys(("all", "all_of", "both"), "a and b"),
    **dict.fromkeys(("none", "none_of", "neither"), "not (a or b)"),
    "one_of": "exactly_one(a, b)",
    "count": "at_most(2, a, b, c)",
}
INSTEAD = {
    "=": "Write '==' to compare.",
    **dict.fromkeys(("&&", "&", "∧"), "Write 'and'."),
    **dict.fromkeys(("||", "|", "\u2228"), "Write 'or'."),
    **dict.fromkeys("!~¬", "Write 'not'."),
    **dict.fromkeys(("->", "⇒", "→"), "Write 'implies'."),
    "implies": "Write CONDITION implies CONCLUSION.",
    "%": "Remainders are not linear. For percent, '%' follows a number, as in 10 %.",
    **dict.fromkeys("\u2212\u2013\u2014", "Write '-' for minus."),
    **dict.fromkeys("\u00d7\u00b7", "Write '*' to multiply."),
    "÷": "Write '/' to divide.",
    **dict.fromkeys("$€£¥", "Units are not written."),
    **dict.fromkeys("\u2018\u2019\u201c\u201d", "Write straight quotes, or backticks, around names."),
    ":": "A condition goes into 'when' and what must hold into 'then'.",
    ";": "Join conditions with 'and', or write two rules.",
    "?": "Write CONDITION implies CONCLUSION.",
    "⇔": "Write '(A implies B) and (B implies A)'.",
}
"""What to write instead of a sign that cannot stand there; some come with pasted text."""


def did_you_mean(name: str, known: list[str] | tuple[str, ...], *, cutoff: float = 0.6) -> str:
    """Return " Did you mean 'speed'?" for a near miss, else the list of known names, else ""."""
    pool = known[:5000]
    near = difflib.get_close_matches(name[:100], pool, n=1, cutoff=cutoff)
    near = near or [k for k in pool if k.lower() == name.lower()][:1]
    if near:
        return f" Did you mean '{near[0]}'?"
    if not pool:
        return ""
    listed = ", ".join(f"'{k}'" for k in pool[:8])
    return f" Known: {listed}{', ...' if len(known) > 8 else ''}."


def instead_of_function(name: str, known: tuple[str, ...]) -> str:
    """Return what to write instead of an unknown function."""
    lowered = name.lower()
    if lowered in known:
        return f" Write '{lowered}' in lower case."
    if lowered in _CURVED:
        return " Rules are linear, and it is not. Put its values into a column of the table, and compare that."
    if lowered in _RELATIONS:
        return " A rule is about one row; how answers change between rows cannot be stated."
    if lowered in _CALLS:
        return f" Write '{_CALLS[lowered]}'."
    if lowered.strip("_").removeprefix("is").strip("_") in _ABSENT | _PRESENT:
        return " Write 'NAME is missing' or 'NAME is known'."
    return did_you_mean(name, known, cutoff=0.75)


def instead_of_word(word: str, before: str, following: tuple[str, ...], sides: tuple[str, str] | None) -> str | None:
    """Return what to write instead of a word found where an operator must be, or None if the word is unknown.

    `word`, the token `before` it and the tokens `following` it are in lower case. `sides` are the texts left and right
    of it, if they make up the whole rule and are short.
    """
    left, right = sides or ("A", "B")
    if word in _JOINED:
        return f"Write '{_JOINED[word].format(left=left, right=right)}'."
    if not {word, before.lower()}.isdisjoint(_CLAUSES):
        return "A condition goes into 'when' and what must hold into 'then', or write CONDITION implies CONCLUSION."
    if word in ("is", "at", "equal", "not", "has"):
        return _after_is(word, before, following)
    if word == "between":
        return f"Write '{_between(before, following)}'; it includes both ends."
    if word in ("of", "times"):
        return "Write '*' to multiply."
    if word in ("mod", "modulo"):
        return "Remainders are not linear."
    return f"Write '{_SIGNS[word]}' to compare." if word in _SIGNS else None


def _after_is(word: str, before: str, following: tuple[str, ...]) -> str:
    """Return what to write instead of `is missing`, `is not`, `is at least`, `is between 3 and 5`."""
    rest = [token for token in following[:4] if token not in ("is", "at", "than", "or", "to")]
    first = rest[0] if rest else ""
    if first in _ABSENT | _PRESENT or (first == "not" and rest[1:2] and rest[1] in _ABSENT | _PRESENT):
        known = (first in _PRESENT) if first != "not" else (rest[1] in _ABSENT)
        return f"Write '{before} is {'known' if known else 'missing'}'."
    if first == "not":
        return "Write '!=' to compare."
    if first == "between":
        return f"Write '{_between(before, following[following.index('between') + 1 :])}'; it includes both ends."
    if first == "in":
        return f"Write '{before} in [...]'."
    return f"Write '{_SIGNS.get(first, '==' if word != 'at' else '>=')}' to compare."


def _between(operand: str, following: tuple[str, ...]) -> str:
    if "and" not in following:
        return f"LOW <= {operand} <= HIGH"
    place = following.index("and")
    high = []
    for token in following[place + 1 :]:
        if token in ("and", "or", "implies", ")", "]", ",", ""):
            break
        high.append(token)
    low = following[:place]
    if not low or not high or len(low) + len(high) > 12:
        return f"LOW <= {operand} <= HIGH"
    return f"{' '.join(low)} <= {operand} <= {' '.join(high)}".replace("- ", "-")
