#!/usr/bin/env python3
"""Exact checker of smle certificates: the trusted kernel. Standard library only, no solver, no tolerance.

    python -m smle.certificates.checker MODEL_DIR        or alone:  python3 -I -S checker.py MODEL_DIR

What is proved, for the numbers in MODEL_DIR/model.safetensors: for every input in the domain and whatever the
backbone computes (NaN and infinities included), the exact values of the float32 outputs of the deployed head
satisfy every rule in the certificate; for any order of summation, with or without fused multiply-add.
docs/certificate-format.md states the deployed program and the format; headings below carry its section numbers.

Every inequality is checked in rationals, or in integers on a power-of-two grid. Whoever made the certificate
is not trusted: multipliers are hints, obligations are derived here. Anything unexpected raises `Rejected`.
"""

import hashlib
import json
import math
import os
import re
import stat
import struct
import sys
import unicodedata
from collections.abc import Callable, Iterable
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from itertools import repeat
from operator import add, mul
from typing import Any, NamedTuple, NoReturn

VERSION = 1
MAX_FILE = 1 << 31  # bytes
MAX_STEPS = 50_000_000  # of the search over regions
MAX_HEADS = 100_000
NUMBER = re.compile(r"-?(\d+(/[1-9]\d*)?|0x[01](\.[0-9a-f]{1,13})?p[+-]\d{1,4})", re.ASCII)
U = Fraction(1, 2**24)  # unit round-off of float32
TINY = Fraction(1, 2**126)  # smallest normal float32
LARGEST = (2 - Fraction(1, 2**23)) * 2**127  # largest float32
FORMATS = {"float32": (24, -126), "float64": (53, -1022)}  # precision, smallest exponent
STATEMENT = {
    "claim": "For every input in the domain, and whatever the backbone computes, the exact values of the numbers that "
    "the deployed float32 program outputs satisfy every rule, without tolerance.",
    "assumptions": [
        "The head runs in IEEE 754 float32 with rounding to nearest; summation order, fused multiply-add, batch size, "
        "threads and flush-to-zero of results are free.",
        "Inputs are passed as finite float32 or float64 numbers. Where the machine treats subnormal numbers as zero, "
        "no input is subnormal; no constant of domain and gate is.",
        "A condition on one input is solved for that input (3 x < 1 is x < 1/3), and its constant is then read as the "
        "nearest number of the input's format, as the ends of the ranges are.",
        "Of the 0/1 columns of a categorical input exactly one is 1.",
        "The runtime executes the program of the format's section 'Deployed program' with the stored constants.",
    ],
    "not_guaranteed": [
        "Accuracy of the predictions.",
        "Inputs outside the domain: numbers are clamped to their range, and the rules hold at the clamped input; "
        "columns of a categorical input that are not 0/1 with exactly one 1 are not mended.",
        "Other precisions (bfloat16, float16, TF32, quantized heads).",
        "Arithmetic that is added after the head.",
    ],
}


class Rejected(ValueError):
    """The certificate is not accepted; the message says why."""


def require(condition: bool, reason: str) -> None:
    """Reject with the reason unless the condition holds."""
    if not condition:
        raise Rejected(reason)


# --- 1. Reading: strict JSON, exact numbers, weights ---------------------------------------------------------


def read_json(data: bytes, what: str) -> Any:
    """Parse JSON; refuse duplicate keys, floats, NaN, long integers and deep nesting."""

    def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
        require(len({key for key, _ in items}) == len(items), f"{what}: duplicate key")
        return dict(items)

    def refuse(text: str) -> NoReturn:
        raise Rejected(f"{what}: JSON number {text[:40]} refused; exact numbers are integers or strings")

    def integer(text: str) -> int:
        return int(text) if len(text) < 16 else refuse(text)

    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique, parse_float=refuse, parse_constant=refuse, parse_int=integer)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Rejected(f"{what}: not readable as JSON ({type(error).__name__}: {str(error)[:80]})") from None


def canonical(value: Any) -> bytes:
    """Return the one way to write a JSON value: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def fields(value: Any, names: str, what: str) -> list[Any]:
    """Return the fields of an object that has exactly these (blank-separated) names."""
    require(isinstance(value, dict), f"{what}: expected an object")
    unknown, missing = set(value) - set(names.split()), set(names.split()) - set(value)
    require(not unknown, f"{what}: unknown field {sorted(unknown)[:1]}")
    require(not missing, f"{what}: missing field {sorted(missing)[:1]}")
    return [value[name] for name in names.split()]


def items(value: Any, what: str) -> list[Any]:
    """Return a list."""
    require(isinstance(value, list), f"{what}: expected a list")
    return list(value)


def index(value: Any, size: int, what: str) -> int:
    """Return an integer in 0 .. size - 1."""
    require(type(value) is int and 0 <= value < size, f"{what}: expected an index below {size}")
    return int(value)


def number(value: Any, what: str) -> Fraction:
    """Return an exact number: "-3", "1/10" or a hexadecimal float "0x1.8p-3"."""
    require(isinstance(value, str) and len(value) <= 600, f"{what}: expected a number as a short string")
    match = NUMBER.fullmatch(value)
    require(match is not None, f"{what}: {value[:40]!r} is not an exact number")
    if "x" not in value:
        return Fraction(value)
    mantissa, exponent = value.replace(".", "").split("p")
    digits = len(value.partition(".")[2].partition("p")[0])
    require(abs(int(exponent)) < 1100, f"{what}: {value[:40]!r} is out of range")
    scale: Fraction = Fraction(2) ** (int(exponent) - 4 * digits)
    return int(mantissa, 16) * scale


# Names are printed so that two different ones never look the same. Left as they are: printable ASCII but the backslash,
# a few signs, and Latin, Greek, Cyrillic, Kana, Han and Hangul letters, unless they pass for something else.
SIGNS = re.compile("[\xa3\xa7\xb0\xb2\xb3\xb5\xb9\xbc-\xbe\u20ac\u3001\u3002\u3005\u300c\u300d\u30fb\uff08\uff09]")
LATIN = re.compile("[A-Za-z\xc0-\u01bf\u01c4-\u024f\u1e00-\u1eff]")
OTHER = re.compile("[\u0370-\u052f\u1f00-\u1fff]")  # Greek and Cyrillic, of which some look Latin
ASIAN = re.compile("[\u3041-\u3096\u30a1-\u30fc\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U000323af]")
# Greek and Cyrillic that looks Latin, Cyrillic that looks Greek, Kana that looks like Han or other Kana.
_ALIKE = """
0391A 0392B 0395E 0396Z 0397H 0399I 039aK 039cM 039dN 039fO 03a1P 03a4T 03a5Y 03a7X 03b1a 03b9i 03bak 03bdv 03bfo 03c1p
03c5u 0405S 0406I 0408J 0410A 0412B 0415E 041aK 041cM 041dH 041eO 0420P 0421C 0422T 0423Y 0425X 042cb 04aeY 04c0I 051aQ
051cW 0430a 0435e 043eo 0440p 0441c 0443y 0445x 044cb 0455s 0456i 0458j 0475v 04bbh 04cfl 0501d 051bq 051dw 0413\u0393
041b\u039b 041f\u03a0 0424\u03a6 0444\u03c6 0454\u03b5 3078\u30d8 30cb\u4e8c 30ab\u529b 30ed\u53e3 30a8\u5de5 30cf\u516b
30bf\u5915 30c8\u535c 30fc\u4e00
"""
ALIKE = {int(pair[:4], 16): pair[4:] for pair in _ALIKE.split()}
UNSEEN = re.compile(  # ignored or blank, though their category says letter, mark or symbol
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
PARTS = re.compile(r"(?P<blank>\A | \Z| (?= ))|[^\W\d_]+|.", re.DOTALL)
BARE = re.compile(r"(?![\d.=])[\w.=\\]+")


def visible(name: str) -> str:
    """Print a name. What is not plainly visible, or passes for something else, is escaped by its number."""
    if name.isascii() and name.isprintable() and "\\" not in name and name == " ".join(name.split()):
        return name

    def shown(match: re.Match[str]) -> str:
        part = match[0]
        latin = {c for c in OTHER.findall(part) if looks_latin(c)}
        # A Greek or Cyrillic word stays as it is. Not so a letter among Latin ones, and a word that could be Latin.
        alone = not LATIN.search(part) and not latin.issuperset(OTHER.findall(part))
        return "".join(
            c if is_plain(c) and not match["blank"] and (alone or c not in latin) else escaped(c) for c in part
        )

    return PARTS.sub(shown, name)


def is_plain(c: str) -> bool:
    """Whether a character is plainly visible."""
    if c.isascii() or SIGNS.match(c):
        return c.isprintable() and c != "\\"
    known = LATIN.match(c) or OTHER.match(c) or ASIAN.match(c)
    return bool(known) and unicodedata.category(c)[0] == "L" and unicodedata.normalize("NFKC", c) == c


def looks_latin(c: str) -> bool:
    """Whether a Greek or Cyrillic letter, accents aside, looks like a Latin one."""
    return ALIKE.get(ord(unicodedata.normalize("NFD", c)[0]), "\xff").isascii()


def escaped(c: str) -> str:
    """Print a character by its number."""
    return f"\\u{ord(c):04x}" if ord(c) < 1 << 16 else f"\\U{ord(c):08x}"


def looks(name: str) -> set[str]:
    """Return what a name may be taken for: without what cannot be seen, and as it is printed."""
    if name.isascii() and name.isprintable():
        return {" ".join(name.split())}
    kinds = ((c, unicodedata.category(c)[0]) for c in UNSEEN.sub("", unicodedata.normalize("NFKC", name)))
    seen = "".join(" " if kind == "Z" else c for c, kind in kinds if kind != "C")
    printed = unicodedata.normalize("NFD", visible(name)).translate(ALIKE)
    return {unicodedata.normalize("NFKC", " ".join(seen.split())), unicodedata.normalize("NFC", printed)}


def twins(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two names that are the same or could be taken for each other, or None."""
    known: dict[str, str] = {}
    for name in names:
        for look in looks(name):
            if look in known:
                return known[look], name
        known.update(dict.fromkeys(looks(name), name))
    return None


def require_distinct(names: Iterable[str], what: str) -> None:
    """Reject names of which two are the same or look the same."""
    same = twins(names)
    if same is not None:
        require(same[0] != same[1], f"specification: duplicate {what} {visible(same[0])!r}")
        raise Rejected(f"specification: {what}s that look the same: '{visible(same[0])}' and '{visible(same[1])}'")


def text(value: Any, what: str) -> str:
    """Return a name, as it is; `visible` makes it safe to print."""
    require(isinstance(value, str) and len(value) <= 10_000, f"{what}: expected a short text")
    return str(value)


def term(name: str) -> str:
    """Print a name inside a sentence: in backticks, unless it is one word that means nothing else there."""
    shown = visible(name)
    return (
        shown
        if BARE.fullmatch(shown) and shown not in ("and", "or", "not", "where", "everywhere")
        else "`" + shown.replace("`", "``") + "`"
    )


def sparse(value: Any, size: int, what: str) -> dict[int, Fraction]:
    """Return a sparse vector [[index, number], ...] with increasing indices."""
    result: dict[int, Fraction] = {}
    last = -1
    for pair in items(value, what):
        require(isinstance(pair, list) and len(pair) == 2, f"{what}: expected [index, number] pairs")
        key = index(pair[0], size, what)
        require(key > last, f"{what}: indices must increase")
        result[key], last = number(pair[1], what), key
    return result


class Tensor(NamedTuple):
    """A tensor of the weight file, unread."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_weights(data: bytes) -> dict[str, Tensor]:
    """Read a safetensors file without metadata whose tensors fill it exactly."""
    require(len(data) >= 8, "weights: file too short")
    (length,) = struct.unpack("<Q", data[:8])
    require(length <= min(len(data) - 8, 1 << 26), "weights: header length out of range")
    header, body = read_json(data[8 : 8 + length], "weights header"), data[8 + length :]
    require(isinstance(header, dict), "weights header: expected an object")
    sizes = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
    tensors: dict[str, Tensor] = {}
    spans = []
    for name, entry in header.items():
        require(name.isprintable() and len(name) < 1000, "weights: malformed tensor name")
        dtype, shape, offsets = fields(entry, "dtype shape data_offsets", f"tensor {name[:80]!r}")
        require(len(items(shape, "shape")) <= 8, f"tensor {name[:80]!r}: too many dimensions")
        require(isinstance(dtype, str) and dtype in sizes, f"tensor {name[:80]!r}: type not supported")
        require(len(items(offsets, "offsets")) == 2, "weights: offsets")
        dims = tuple(index(s, 1 << 40, "shape") for s in shape)
        start, stop = (index(o, len(body) + 1, "offset") for o in offsets)
        require(stop - start == math.prod(dims) * sizes[dtype], f"tensor {name[:80]!r}: size does not match shape")
        tensors[name] = Tensor(dtype, dims, body[start:stop])
        spans.append((start, stop))
    spans.sort()
    ends = [0] + [stop for _, stop in spans]
    require([start for start, _ in spans] == ends[:-1] and ends[-1] == len(body), "weights: gaps or overlaps")
    return tensors


def weights_digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over the sorted (name, dtype, shape, bytes), each part prefixed with its length."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        for part in (name.encode(), tensor.dtype.encode(), repr(list(tensor.shape)).encode(), tensor.data):
            digest.update(struct.pack("<Q", len(part)) + part)
    return digest.hexdigest()


def values(tensors: dict[str, Tensor], name: str, dtype: str, shape: tuple[int, ...]) -> list[Fraction]:
    """Return the exact values of a tensor of the given type and shape; refuse NaN and infinities."""
    require(name in tensors, f"weights: tensor {name!r} is missing")
    tensor = tensors[name]
    require((tensor.dtype, tensor.shape) == (dtype, shape), f"tensor {name!r}: expected {dtype} of shape {list(shape)}")
    numbers = struct.unpack(f"<{math.prod(shape)}{ {'F32': 'f', 'F64': 'd', 'U8': 'B'}[dtype] }", tensor.data)
    require(all(map(math.isfinite, numbers)), f"tensor {name!r}: NaN or infinity")
    return [Fraction(v) for v in numbers]


# --- 2. Exact floating point ---------------------------------------------------------------------------------


def nearest(value: Fraction, fmt: str) -> Fraction:
    """Round to the nearest number of a format, ties to even."""
    precision, exponent = FORMATS[fmt]
    if value:
        size = abs(value)
        e = size.numerator.bit_length() - size.denominator.bit_length()
        exponent = max(exponent, e if size >= Fraction(2) ** e else e - 1)
    spacing = Fraction(2) ** (exponent - precision + 1)
    result = round(value / spacing) * spacing
    require(abs(result) <= LARGEST, "number beyond the range of float32")
    return result


def constant(value: Fraction, fmt: str) -> Fraction:
    """Round to nearest; refuse subnormal results: a runtime may treat them as zero, so they are never deployed."""
    result = nearest(value, fmt)
    require(not result or abs(result) >= Fraction(2) ** FORMATS[fmt][1], f"a constant is too close to 0 for {fmt}")
    return result


def upward(value: Fraction) -> Fraction:
    """Round up to a multiple of 2^-200: a simpler number that is not smaller."""
    return Fraction(math.ceil(value * 2**200), 2**200)


def on_grid(numbers: list[Fraction]) -> tuple[list[int], int]:
    """Write dyadic numbers as integers times 2^-k; return the integers and k."""
    k = max((v.denominator.bit_length() - 1 for v in numbers), default=0)
    shifts = [k + 1 - v.denominator.bit_length() for v in numbers]
    require(all(v.denominator << shift == 1 << k for v, shift in zip(numbers, shifts, strict=True)), "not dyadic")
    return [v.numerator << shift for v, shift in zip(numbers, shifts, strict=True)], k


def affine_error(weights: list[Fraction], sizes: list[Fraction], offset: Fraction, what: str) -> Fraction:
    """Bound |fl(w.v + c) - (w.v + c)| for |v_j| <= sizes_j: any order of summation, FMA, flush-to-zero."""
    n = len(weights)
    require(n + 1 < 2**20 and n == len(sizes), f"{what}: sum too long")
    growth = Fraction(n + 1, 2**24 - n - 1)
    (w, i), (s, j) = on_grid([abs(v) for v in weights]), on_grid(sizes)
    total = abs(offset) + Fraction(sum(map(mul, w, s)), 1 << (i + j))
    tiny = TINY * (2 * n + 1 + Fraction(sum(w), 1 << i) + Fraction(sum(s), 1 << j)) * (1 + growth)
    require((1 + growth) * total + tiny < LARGEST, f"{what}: may overflow float32")
    return growth * total + tiny


# --- 3. Specification, guard rows, domain --------------------------------------------------------------------


class Row(NamedTuple):
    """One half-space of the input space, as the deployed guard treats it."""

    terms: dict[int, Fraction]  # exact coefficients
    bound: Fraction  # as stated
    strict: bool
    closed: Fraction  # terms . x32 <= closed wherever the guard (or the rule) says inside
    compared: dict[str, tuple[Fraction, bool]]  # per input format: bound and strictness on x as passed


class Literal(NamedTuple):
    """y . outputs + x . inputs <= bound (or <)."""

    y: dict[int, Fraction]
    x: dict[int, Fraction]
    bound: Fraction
    strict: bool


class Rule(NamedTuple):
    """Regions (by number) => all clauses (OR of literals) and exclusions (pairs of labels)."""

    name: str
    regions: list[int]
    clauses: list[list[Literal]]
    exclusions: list[tuple[int, int]]


def exclusion(pair: tuple[int, int]) -> list[Literal]:
    """Return the clause "not both labels"."""
    return [Literal({label: Fraction(1)}, {}, Fraction(0), True) for label in pair]


def linear_text(terms: dict[int, Fraction], names: list[str]) -> str:
    """Print a linear form."""
    parts = []
    for key, value in terms.items():
        size = "" if abs(value) == 1 else f"{decimal(abs(value))} * "
        parts.append(f"{'-' if value < 0 else '+'} {size}{names[key]}")
    joined = " ".join(parts).removeprefix("+ ")
    return "-" + joined[2:] if joined.startswith("- ") else joined or "0"


def decimal(value: Fraction) -> str:
    """Print a rational as a finite decimal if it is one of moderate length, else as a fraction."""
    for digits in range(13):
        if (value * 10**digits).denominator == 1:
            sign, scaled = "-" if value < 0 else "", str(abs(int(value * 10**digits))).rjust(digits + 1, "0")
            return sign + (scaled[:-digits] + "." + scaled[-digits:] if digits else scaled)
    return str(value)


def approximate(value: Fraction) -> str:
    """Print a number with six digits, rounded down: a margin is never printed larger than it was proved."""
    return f"{Context(prec=6, rounding=ROUND_FLOOR).divide(Decimal(value.numerator), Decimal(value.denominator)):g}"


def comparison_text(terms: dict[int, Fraction], bound: Fraction, strict: bool, names: list[str]) -> str:
    """Print terms <= bound; a form that starts with a minus is turned around."""
    flip = bool(terms) and next(iter(terms.values())) < 0
    sign = -1 if flip else 1
    operator = (">" if flip else "<") + ("" if strict else "=")
    return f"{linear_text({k: sign * v for k, v in terms.items()}, names)} {operator} {decimal(sign * bound)}"


class Specification:
    """What is claimed: inputs, outputs, half-spaces, regions, rules; and the domain of the proof."""

    def __init__(self, data: Any, block: bytes) -> None:
        inputs, one_hot, outputs, rows, regions, rules = fields(
            data, "inputs one_hot outputs rows regions rules", "specification"
        )
        self.inputs, self.lower, self.upper, names = [], [], [], []
        for entry in items(inputs, "inputs"):
            name, lower, upper = fields(entry, "name lower upper", "input")
            names.append(text(name, "input name"))
            self.inputs.append(term(name))
            self.lower.append(number(lower, "input range"))
            self.upper.append(number(upper, "input range"))
            require(self.lower[-1] <= self.upper[-1], f"input {self.inputs[-1]!r}: empty range")
        self.outputs = []
        for entry in items(outputs, "outputs"):
            name, kind = fields(entry, "name kind", "output")
            require(kind in ("number", "label", "score"), "output: unknown kind")
            names.append(text(name, "output name"))
            self.outputs.append(term(name))
        d, m = len(self.inputs), len(self.outputs)
        require(d > 0 and m > 0, "specification: no inputs or no outputs")
        require_distinct(names, "name")
        # The cast of an input in the domain lies in [low, high], whichever float format it came in.
        self.low = [min(nearest(v, "float32"), nearest(nearest(v, "float64"), "float32")) for v in self.lower]
        self.high = [max(nearest(v, "float32"), nearest(nearest(v, "float64"), "float32")) for v in self.upper]
        self.passed = {f: ([constant(v, f) for v in self.lower], [constant(v, f) for v in self.upper]) for f in FORMATS}
        ends = list(zip(*(end for box in self.passed.values() for end in box), strict=True))
        self.sizes: list[Fraction] = [max(map(abs, column)) for column in ends]  # of x as passed
        self.reach = [max(abs(a), abs(b)) for a, b in zip(self.low, self.high, strict=True)]  # of x cast to float32
        self.rows = [self.row(entry, d) for entry in items(rows, "rows")]
        grouped: set[int] = set()
        self.groups: list[list[int]] = []
        for group in items(one_hot, "one_hot"):
            members = [index(i, d, "one_hot") for i in items(group, "one_hot")]
            require(len(set(members)) == len(members) > 1, "one_hot: expected different inputs")
            require(grouped.isdisjoint(members), "one_hot: groups overlap")
            grouped.update(members)
            self.groups.append(members)
            require(all(self.lower[i] == 0 and self.upper[i] == 1 for i in members), "one_hot: expected 0/1 inputs")
            for sign in (1, -1):  # exactly one member is 1: exact in every format
                form, bound = {i: Fraction(sign) for i in members}, Fraction(sign)
                self.rows.append(Row(form, bound, False, bound, dict.fromkeys(FORMATS, (bound, False))))
        stated = len(self.rows) - 2 * len(one_hot)
        self.stated = stated
        self.regions = [[index(i, stated, "region") for i in items(r, "region")] for r in items(regions, "regions")]
        require(all(sorted(set(r)) == r for r in self.regions), "region: rows must increase")
        self.rules = [self.rule(entry, d, m, block) for entry in items(rules, "rules")]
        require_distinct((entry["name"] for entry in rules), "rule name")

    def row(self, entry: Any, d: int) -> Row:
        """Read a half-space and derive what the guard's answer says about x (section 5)."""
        terms_data, bound_data, strict = fields(entry, "terms bound strict", "row")
        terms, bound = sparse(terms_data, d, "row"), number(bound_data, "row")
        require(isinstance(strict, bool) and bool(terms) and all(terms.values()), "row: malformed")
        if len(terms) == 1:  # a comparison is exact, on the input as passed
            require(abs(next(iter(terms.values()))) == 1, "row: a comparison has the coefficient 1 or -1")
            passed = {f: (constant(bound, f), strict) for f in FORMATS}
            closed = max(nearest(v, "float32") for v, _ in passed.values())
            return Row(terms, bound, strict, closed, passed)
        slack = guard_slack(terms, self.sizes)
        enlarged = threshold_above(bound + slack) + slack
        return Row(terms, bound, strict, enlarged, dict.fromkeys(FORMATS, (enlarged, False)))

    def rule(self, entry: Any, d: int, m: int, block: bytes) -> Rule:
        """Read a rule."""
        name, regions, clauses, exclusions = fields(entry, "name regions clauses exclusions", "rule")
        name = visible(text(name, "rule name"))
        where = [index(r, len(self.regions), f"rule {name!r}") for r in items(regions, f"rule {name!r}")]
        parsed = []
        for clause in items(clauses, f"rule {name!r}"):
            literals = []
            for literal in items(clause, "clause"):
                y, x, bound, strict = fields(literal, "y x bound strict", "literal")
                require(isinstance(strict, bool), "literal: strict must be true or false")
                literals.append(
                    Literal(sparse(y, m, "literal"), sparse(x, d, "literal"), number(bound, "literal"), strict)
                )
            require(bool(literals), f"rule {name!r}: empty clause")
            parsed.append(literals)
        pairs: list[tuple[int, int]] = []
        if exclusions is not None:
            offset, count = fields(exclusions, "offset count", "exclusions")
            flat = read_block(block, offset, count, "I", "exclusions")
            pairs = list(zip(flat[::2], flat[1::2], strict=True))
            require(all(h < k < m for h, k in pairs), f"rule {name!r}: exclusions must be pairs h < k of outputs")
        require(bool(where) and bool(parsed or pairs), f"rule {name!r}: no region or nothing required")
        return Rule(name, where, parsed, pairs)


def threshold_above(value: Fraction) -> Fraction:
    """Return the smallest float32 number >= value that is 0 or normal."""
    if -TINY < value < TINY:
        return TINY if value > 0 else Fraction(0)
    result = nearest(value, "float32")
    if result >= value:
        return result
    (bits,) = struct.unpack("<i", struct.pack("<f", float(result)))  # the next number above it, as integers count
    (above,) = struct.unpack("<f", struct.pack("<i", bits + 1 if result > 0 else bits - 1))
    require(math.isfinite(above), "number beyond the range of float32")
    return Fraction(above)


def coefficient(value: Fraction) -> Fraction:
    """Return the stored coefficient of an oblique row: the nearest float32 number, 0 in place of subnormal ones."""
    result = nearest(value, "float32")
    return result if abs(result) >= TINY else Fraction(0)


def guard_slack(terms: dict[int, Fraction], sizes: list[Fraction]) -> Fraction:
    """Bound |fl(stored . cast(x)) - terms . x|: stored coefficients, the cast, products and sums."""
    stored = {k: coefficient(v) for k, v in terms.items()}
    cast = {k: U * sizes[k] + TINY for k in terms}
    parts = [abs(terms[k] - stored[k]) * sizes[k] + abs(stored[k]) * cast[k] for k in terms]
    return sum(parts) + affine_error(list(stored.values()), [sizes[k] + cast[k] for k in terms], Fraction(0), "guard")


def read_block(block: bytes, offset: Any, count: Any, code: str, what: str) -> tuple[Any, ...]:
    """Return 2 x count little-endian 4-byte numbers at an offset of certificate.bin."""
    start, pairs = index(offset, len(block) + 1, what), index(count, 1 << 31, what)
    require(start % 4 == 0 and start + 8 * pairs <= len(block), f"{what}: outside of certificate.bin")
    return struct.unpack_from(f"<{2 * pairs}{code}", block, start)


# --- 4. The kernel: the maximum of an affine function over a polytope, bounded by multipliers ----------------


def bounded(
    slope: dict[int, Fraction],
    rows: list[tuple[dict[int, Fraction], Fraction]],
    multipliers: list[Fraction],
    low: list[Fraction],
    high: list[Fraction],
) -> Fraction:
    """Bound max slope.x over {x in [low, high] : terms.x <= bound for all rows}, by weak duality.

    slope.x <= mu.a + (slope - A'mu).x, and the residual is priced over the box.
    """
    residual, total = dict(slope), Fraction(0)
    for (terms, bound), mu in zip(rows, multipliers, strict=True):
        total += mu * bound
        for key, value in terms.items():
            residual[key] = residual.get(key, Fraction(0)) - mu * value
    return total + sum(max(e * low[i], e * high[i]) for i, e in residual.items())


def multipliers_of(value: Any, allowed: set[int], what: str) -> dict[int, Fraction]:
    """Read multipliers >= 0 for allowed rows."""
    result = sparse(value, max(allowed, default=-1) + 1, what)
    require(set(result) <= allowed, f"{what}: multiplier for a row that does not bind here")
    require(all(mu >= 0 for mu in result.values()), f"{what}: negative multiplier")
    return result


def refuted(spec: Specification, mu: dict[int, Fraction], complement: Row | None, weight: Fraction) -> bool:
    """Whether multipliers prove that no input as passed lies in the rows (and in the complement of one more)."""
    for fmt in FORMATS:
        rows = [(spec.rows[r].terms, spec.rows[r].compared[fmt][0]) for r in mu]
        weights = list(mu.values())
        strict = any(w > 0 and spec.rows[r].compared[fmt][1] for r, w in mu.items())
        if complement is not None:
            # Outside a comparison: its exact negation. Outside an oblique row: the stated half-space is left.
            bound, is_strict = complement.compared[fmt] if len(complement.terms) == 1 else (complement.bound, False)
            rows.append(({k: -v for k, v in complement.terms.items()}, -bound))
            weights.append(weight)
            strict = strict or (weight > 0 and not is_strict)
        total = bounded({}, rows, weights, *spec.passed[fmt])
        if not (total < 0 or (total == 0 and strict)):
            return False
    return True


# --- 5. Guard and coverage: every input gets a certified head ------------------------------------------------


def guard_tensors(spec: Specification, gated: list[int]) -> dict[str, Tensor]:
    """Return the constants of domain and guard that section 5 prescribes."""

    def packed(numbers: list[Fraction], fmt: str, *shape: int) -> Tensor:
        dtype, code = {"float32": ("F32", "f"), "float64": ("F64", "d")}[fmt]
        return Tensor(dtype, shape, struct.pack(f"<{len(numbers)}{code}", *map(float, numbers)))

    d, result = len(spec.inputs), {}
    used = [spec.rows[r] for r in sorted({r for g in gated for r in spec.regions[g]})]
    comparisons = [row for row in used if len(row.terms) == 1]
    oblique = [row for row in used if len(row.terms) > 1]
    for fmt in FORMATS:
        for side, ends in zip(("lower", "upper"), spec.passed[fmt], strict=True):
            result[f"domain.{side}_{fmt}"] = packed(ends, fmt, d)
        constants = [row.compared[fmt][0] for row in comparisons]
        result[f"gate.constants_{fmt}"] = packed(constants, fmt, len(comparisons))
    coefficients = [coefficient(row.terms.get(k, Fraction(0))) for row in oblique for k in range(d)]
    thresholds = [threshold_above(row.bound + guard_slack(row.terms, spec.sizes)) for row in oblique]
    result["gate.coefficients"] = packed(coefficients, "float32", len(oblique), d)
    result["gate.thresholds"] = packed(thresholds, "float32", len(oblique))
    return result


def check_guard(spec: Specification, tensors: dict[str, Tensor], gated: list[int]) -> None:
    """Check that the stored constants of domain and guard are, bit by bit, those that section 5 prescribes."""
    oblique = sum(len(spec.rows[r].terms) > 1 for r in {r for g in gated for r in spec.regions[g]})
    shape = tensors["gate.coefficients"].shape if "gate.coefficients" in tensors else ()
    require(
        shape == (oblique, len(spec.inputs)), "gate.coefficients is not what the rules prescribe"
    )  # bounds the work
    for name, prescribed in guard_tensors(spec, gated).items():
        require(tensors.get(name) == prescribed, f"{name} is not what the rules prescribe")


def check_coverage(spec: Specification, data: Any, gated: list[int], cells: list[tuple[int, ...]]) -> None:
    """Walk all signatures of the gated regions; each must be a cell or be refuted."""
    conflicts, implications = fields(data, "conflicts implications", "coverage")
    nogoods: list[set[int]] = []
    for entry in items(conflicts, "conflicts"):
        regions, mu = fields(entry, "regions multipliers", "conflict")
        together = [index(r, len(spec.regions), "conflict") for r in items(regions, "conflict")]
        binding = {r for g in together for r in spec.regions[g]} | set(range(spec.stated, len(spec.rows)))
        proof = multipliers_of(mu, binding, "conflict")
        require(refuted(spec, proof, None, Fraction(0)), f"conflict {together}: the multipliers prove nothing")
        nogoods.append(set(together))
    implied: list[tuple[set[int], set[int]]] = []
    for entry in items(implications, "implications"):
        regions, consequence, proofs = fields(entry, "regions implied multipliers", "implication")
        together = [index(r, len(spec.regions), "implication") for r in items(regions, "implication")]
        target = index(consequence, len(spec.regions), "implication")
        known = {r for g in together for r in spec.regions[g]}
        binding = known | set(range(spec.stated, len(spec.rows)))
        require(len(items(proofs, "implication")) == len(spec.regions[target]), "implication: one proof per row")
        for r, entry_proof in zip(spec.regions[target], proofs, strict=True):
            weight_data, mu = fields(entry_proof, "complement rows", "implication")
            weight = number(weight_data, "implication")
            require(weight >= 0, "implication: negative multiplier")
            proof = multipliers_of(mu, binding, "implication")
            # A row that is already inside has the same bit: it is computed once.
            require(
                r in known or refuted(spec, proof, spec.rows[r], weight),
                f"implication {together} => {target}: the multipliers prove nothing",
            )
        implied.append((set(together), {target}))
    # What to test once a region is decided: (all these inside, and this one outside) cannot be.
    tests: dict[int, list[tuple[int, int]]] = {g: [] for g in gated}
    impossible: list[tuple[set[int], set[int]]] = [(inner, set()) for inner in nogoods] + implied
    for inner, outer in impossible:
        mask, bit = sum(1 << g for g in inner), sum(1 << g for g in outer)
        for g in inner | outer:
            if g in tests:
                tests[g].append((mask, bit))
    known_cells, steps = set(cells), 0
    stack: list[tuple[int, int, int]] = [(0, 0, 0)]  # how many regions are decided; those inside, those outside
    while stack:
        depth, inside, outside = stack.pop()
        relevant = tests[gated[depth - 1]] if depth else []
        steps += 1 + len(relevant)
        require(steps <= MAX_STEPS, "coverage: too many signatures")
        if any(inside & mask == mask and outside & bit == bit for mask, bit in relevant):
            continue
        if depth == len(gated):
            cell = tuple(sorted(g for g in gated if inside >> g & 1))
            require(cell in known_cells, f"coverage: no head for the regions {list(cell)}")
            continue
        stack.append((depth + 1, inside, outside | 1 << gated[depth]))
        stack.append((depth + 1, inside | 1 << gated[depth], outside))


# --- 6. Heads: worst case over the box of the clipped embedding ----------------------------------------------


Box = tuple[list[Fraction], list[Fraction]]  # low and high ends


class Hidden:
    """A hidden layer of bounds by a network over one box of inputs: h = relu(p), p = A v + a, between lines (6.1).

    v is the input or the layer before. Any slopes in [0, 1] will do: below * p <= relu(p), and relu(p) - above * p is
    convex, so largest at an end.
    """

    def __init__(
        self, layer: tuple[list[list[Fraction]], list[Fraction]], box: Box, slopes: tuple[float, ...],
        previous: "Hidden | None" = None,
    ) -> None:  # fmt: skip
        self.weight, self.bias = layer
        self.box, self.previous = box, previous
        self.errors: list[Fraction] = []
        self.reach: list[Fraction] = []
        self.below, self.above, self.lift, self.bottom, self.top = [], [], [], [], []
        sizes, errors = [max(abs(a), abs(b)) for a, b in zip(*box, strict=True)], [Fraction(0)] * len(box[0])
        if previous is not None:
            sizes, errors = previous.reach, previous.errors
        for j, (row, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            below, above = slopes[2 * j], slopes[2 * j + 1]
            require(0 <= below <= 1 and 0 <= above <= 1, "slopes: expected numbers in 0 .. 1")
            ends = [bias - self.highest([-w for w in row]), bias + self.highest(row)]
            self.below.append(Fraction(below))
            self.above.append(Fraction(above))
            self.lift.append(max(max(end, Fraction(0)) - self.above[j] * end for end in ends))
            self.bottom.append(max(ends[0], Fraction(0)))
            self.top.append(max(ends[1], Fraction(0)))
            inherited = sum((abs(w) * e for w, e in zip(row, errors, strict=True)), Fraction(0))
            error = affine_error(row, sizes, bias, "hidden layer of the bounds")
            self.errors.append(upward(error + inherited + TINY))
            self.reach.append(self.top[j] + self.errors[j])

    def highest(self, row: list[Fraction]) -> Fraction:
        """Bound row.v over the box from above, without rounding errors."""
        if self.previous is None:
            return over_box(row, self.box)
        constant, slope = self.previous.back(row)
        return constant + over_box(slope, self.box)

    def back(self, q: list[Fraction]) -> tuple[Fraction, list[Fraction]]:
        """Return (d, c) with q.h <= d + c.x on the box, without rounding errors."""
        constant, slope = Fraction(0), [Fraction(0)] * len(self.weight[0])
        for j, value in enumerate(q):
            through = value * (self.above[j] if value > 0 else self.below[j])
            constant += through * self.bias[j] + max(value, Fraction(0)) * self.lift[j]
            slope = [s + through * w for s, w in zip(slope, self.weight[j], strict=True)]
        if self.previous is None:
            return constant, slope
        more, slope = self.previous.back(slope)
        return constant + more, slope


class Bounds:
    """Center and half-width of the clipped embedding, affine in x (or in h): any float evaluation lies inside."""

    def __init__(
        self, spec: Specification, tensors: dict[str, Tensor], kind: str, hidden: Hidden | None = None
    ) -> None:
        require("bounds.lower" in tensors, "weights: tensor 'bounds.lower' is missing")
        self.hidden, self.box, span = hidden, (spec.low, spec.high), (spec.low, spec.high)
        reach, errors = spec.reach, [Fraction(0)] * len(spec.inputs)
        if hidden is not None:
            self.box, span, reach, errors = hidden.box, (hidden.bottom, hidden.top), hidden.reach, hidden.errors
        n, d = math.prod(tensors["bounds.lower"].shape), len(reach)
        self.width, self.affine, self.arguments = n, kind != "constant", d
        lower, upper = (values(tensors, f"bounds.{side}", "F32", (n,)) for side in ("lower", "upper"))
        slopes: list[list[Fraction]] = [[], []]
        if self.affine:
            slopes = [values(tensors, f"bounds.{side}_slope", "F32", (n, d)) for side in ("lower", "upper")]
        center, half, self.sizes = [], [], []
        for i in range(n):
            low_slope, high_slope = (s[i * d : (i + 1) * d] for s in slopes)  # empty if constant
            extra = Fraction(0) if min(abs(lower[i]), abs(upper[i])) >= TINY else TINY
            if self.affine:
                inherited = [
                    sum(abs(s) * e for s, e in zip(part, errors, strict=True)) for part in (low_slope, high_slope)
                ]
                low_error = affine_error(low_slope, reach, lower[i], "bounds") + inherited[0]
                high_error = affine_error(high_slope, reach, upper[i], "bounds") + inherited[1]
                extra = upward(TINY + max(low_error, high_error))
            gap = [a - b for a, b in zip(low_slope, high_slope, strict=True)]
            extra += max(Fraction(0), lower[i] - upper[i] + over_box(gap, span))
            center.append((lower[i] + upper[i]) / 2)
            half.append((upper[i] - lower[i]) / 2 + extra)
            highest = upper[i] + over_box(high_slope, span)
            lowest = lower[i] - over_box([-s for s in low_slope], span)
            self.sizes.append(max(highest, -lowest, Fraction(0)) + 2 * extra)
        self.center, self.center_grid = on_grid(center)
        self.half, self.half_grid = on_grid(half)
        center_slope, self.center_slope_grid = on_grid([(a + b) / 2 for a, b in zip(*slopes, strict=True)])
        half_slope, self.half_slope_grid = on_grid([(b - a) / 2 for a, b in zip(*slopes, strict=True)])
        # One column per argument; none if the bounds are constant.
        self.center_slope = [center_slope[k::d] for k in range(d if self.affine else 0)]
        self.half_slope = [half_slope[k::d] for k in range(d if self.affine else 0)]


def over_box(slope: list[Fraction], box: Box) -> Fraction:
    """Maximum of slope.x over a box; an empty slope is zero."""
    ends = zip(slope, *box, strict=False)
    return sum((max(s * low, s * high) for s, low, high in ends), Fraction(0))


class Head:
    """One head y = W z + V x + b: outputs at the center of the box, and the rounding error of each."""

    def __init__(self, spec: Specification, bounds: Bounds, W: list[Fraction], V: list[Fraction], b: list[Fraction]):
        n, d, m = bounds.width, len(spec.inputs), len(b)
        self.spec, self.bounds = spec, bounds
        flat, self.grid = on_grid(W)
        self.W = [flat[i * n : (i + 1) * n] for i in range(m)]
        self.V = [V[i * d : (i + 1) * d] for i in range(m)] if V else []
        self.errors, self.middle, self.tilt = [], [], []
        sizes = bounds.sizes + (spec.reach if V else [])
        for i, row in enumerate(self.W):
            weights = W[i * n : (i + 1) * n] + V[i * d : (i + 1) * d]
            self.errors.append(upward(affine_error(weights, sizes, b[i], f"output {spec.outputs[i]!r}")))
            self.middle.append(b[i] + self.dot(row, bounds.center, bounds.center_grid))
            self.tilt.append([self.dot(row, column, bounds.center_slope_grid) for column in bounds.center_slope])

    def dot(self, v: list[int], column: list[int], grid: int) -> Fraction:
        """Inner product of a combination of rows with a vector that is on a grid of its own."""
        return Fraction(sum(map(mul, v, column)), 1 << (self.grid + grid))

    def worst(self, g: dict[int, Fraction]) -> tuple[Fraction, dict[int, Fraction]]:
        """Bound g.y over the box: return (d, c) with g.y <= d + c.x, without rounding errors."""
        box, scale = self.bounds, math.lcm(*(v.denominator for v in g.values()))
        v = [0] * box.width
        for j, value in g.items():
            v = list(map(add, v, map(mul, repeat(int(value * scale)), self.W[j])))
        size = list(map(abs, v))
        constant = sum((value * self.middle[j] for j, value in g.items()), Fraction(0))
        constant += self.dot(size, box.half, box.half_grid) / scale
        q = [self.dot(size, column, box.half_slope_grid) / scale for column in box.half_slope]
        for j, value in g.items():
            q = [total + value * tilt for total, tilt in zip(q, self.tilt[j], strict=True)]
        if box.hidden is not None:  # q is a combination of hidden units so far
            more, q = box.hidden.back(q)
            constant += more
        slope = dict(enumerate(q))
        for k in range(len(self.spec.inputs) if self.V else 0):
            slope[k] = slope.get(k, Fraction(0)) + sum(value * self.V[j][k] for j, value in g.items())
        return constant, {k: value for k, value in slope.items() if value}

    def clause_bound(
        self, clause: list[Literal], weights: list[Fraction], rows: list[Row], mu: list[Fraction]
    ) -> Fraction:
        """Bound sum_j lambda_j (g_j.y + s_j.x - h_j) over the polytope, rounding errors included (section 7)."""
        g: dict[int, Fraction] = {}
        s: dict[int, Fraction] = {}
        for literal, weight in zip(clause, weights, strict=True):
            for target, form in ((g, literal.y), (s, literal.x)):
                for key, value in form.items():
                    target[key] = target.get(key, Fraction(0)) + weight * value
        constant, slope = self.worst(g)
        constant -= sum(weight * literal.bound for literal, weight in zip(clause, weights, strict=True))
        constant += sum(abs(value) * self.errors[j] for j, value in g.items())
        constant += sum(abs(value) * (U * self.spec.sizes[k] + TINY) for k, value in s.items())
        for key, value in s.items():
            slope[key] = slope.get(key, Fraction(0)) + value
        halfspaces = [(row.terms, row.closed) for row in rows]
        return constant + bounded(slope, halfspaces, mu, *self.bounds.box)

    def exclusion_margin(self, pairs: list[tuple[int, int]], weights: tuple[float, ...]) -> Fraction:
        """Prove y_h < 0 or y_k < 0 for all pairs with weights (lambda_h, lambda_k).

        Return the least margin; of more than 1,000 pairs a lower bound of it.
        """
        packed = Packed(self) if len(pairs) > 1000 and not self.bounds.affine and not self.V else None
        least: list[Fraction] = []
        worst, total = -1, 0  # the coarse bound that is nearest to zero, as numerator and denominator
        for (h, k), first, second in zip(pairs, weights[::2], weights[1::2], strict=True):
            require(0 <= first < math.inf and 0 <= second < math.inf and first + second > 0, "exclusions: multipliers")
            (p, a), (q, b) = first.as_integer_ratio(), second.as_integer_ratio()
            p, q = p * (max(a, b) // a), q * (max(a, b) // b)  # denominators are powers of two
            if packed is not None and p + q <= 1 << 32 and (top := packed.bound(h, k, p, q)) < 0:
                if top * total >= worst * (p + q):
                    worst, total = top, p + q
                continue
            margin = -self.clause_bound(exclusion((h, k)), [Fraction(p), Fraction(q)], [], []) / (p + q)
            require(margin > 0, f"exclusion of {self.spec.outputs[h]!r} and {self.spec.outputs[k]!r} is not proved")
            least = [min([margin, *least])]
        if packed is not None and total:
            least.append(-Fraction(worst, total) * packed.unit)
        return min(least, default=Fraction(0))


PairProof = Callable[[Head, list[tuple[int, int]], tuple[float, ...]], Fraction]


class Packed:
    """The rows a = half-width x W of a head with constant bounds, in coarse units, each packed into one integer.

    Lane j of a number is coordinate j, so a combination of rows is that of the numbers. A bias keeps lanes from being
    negative: its bit says which v_j are >= 0. Halves of a number are added until one lane, the sum of all, is left.
    """

    def __init__(self, head: Head) -> None:
        box, n = head.bounds, head.bounds.width
        rows = [list(map(mul, row, box.half)) for row in head.W]
        drop = max(0, max((abs(v) for row in rows for v in row), default=0).bit_length() - 26)
        self.unit = Fraction(1 << drop, 1 << (head.grid + box.half_grid))
        rows = [[(v + (1 << drop >> 1)) >> drop for v in row] for row in rows]  # each wrong by half a unit at most
        # Where p + q <= 2^32 no |v_j| exceeds 2^58: biased lanes are below 2^60, and n of them do not fill a lane.
        self.bit, lane = 59, 60 + n.bit_length()
        self.packed = [sum(v << (lane * j) for j, v in enumerate(row)) for row in rows]
        self.ones = sum(1 << (lane * j) for j in range(n))
        self.bias = self.ones << self.bit
        self.halves = [(lane << i, (1 << (lane << i)) - 1) for i in reversed(range(n.bit_length()))]
        # Logit at the center plus rounding error plus the coarseness, less sum_j a_j: sum |v| = 2 sum v+ - sum v.
        tops = [math.ceil((y + e) / self.unit) for y, e in zip(head.middle, head.errors, strict=True)]
        self.rest: list[int] = [top + (n + 1) // 2 - sum(row) for top, row in zip(tops, rows, strict=True)]

    def bound(self, h: int, k: int, p: int, q: int) -> int:
        """Bound sum_j |p a_hj + q a_kj| + p top_h + q top_k from above, in units."""
        v = p * self.packed[h] + q * self.packed[k] + self.bias
        signs = (v >> self.bit) & self.ones
        positive: int = v & ((signs << self.bit) - signs)  # v_j where v_j >= 0, else 0
        for half, low in self.halves:
            positive = (positive >> half) + (positive & low)
        return 2 * positive + p * self.rest[h] + q * self.rest[k]


class Relaxed:
    """A head under bounds by a network: one `Head` for every box and slopes that a proof speaks of."""

    def __init__(
        self, spec: Specification, tensors: dict[str, Tensor], block: bytes, weights: tuple[list[Fraction], ...]
    ) -> None:
        self.spec, self.tensors, self.block, self.weights = spec, tensors, block, weights
        self.layers, d = [], len(spec.inputs)
        for i in range(hidden_layers(tensors)):
            k = math.prod(tensors[f"bounds.hidden.{i}.bias"].shape)
            require(k > 0, "bounds: a hidden layer without units")
            flat = values(tensors, f"bounds.hidden.{i}.weight", "F32", (k, d))
            bias = values(tensors, f"bounds.hidden.{i}.bias", "F32", (k,))
            self.layers.append(([flat[j * d : (j + 1) * d] for j in range(k)], bias))
            d = k
        self.units = sum(len(bias) for _, bias in self.layers)
        self.known: dict[tuple[Any, ...], Head] = {}

    def over(self, box: Box, offset: Any) -> Head:
        """Return the head over a box, with the slopes at an offset of certificate.bin."""
        slopes = read_block(self.block, offset, self.units, "f", "slopes")
        key = (offset, *box[0], *box[1])
        if key not in self.known:
            hidden: Hidden | None = None
            for layer in self.layers:
                hidden = Hidden(layer, box, slopes, hidden)
                slopes = slopes[2 * len(layer[1]) :]
            bounds = Bounds(self.spec, self.tensors, "network", hidden)
            self.known[key] = Head(self.spec, bounds, *self.weights)
        return self.known[key]

    def root(self, active: set[int]) -> Box:
        """Return the smallest box that the active rows over one input leave; empty ones shrink to a point."""
        low, high = list(self.spec.low), list(self.spec.high)
        for row in (self.spec.rows[r] for r in active if len(self.spec.rows[r].terms) == 1):
            ((k, sign),) = row.terms.items()
            if sign > 0:
                high[k] = min(high[k], row.closed)
            else:
                low[k] = max(low[k], -row.closed)
        return [min(ends) for ends in zip(low, high, strict=True)], high


# --- 7. Obligations: every head, every rule that binds there, every clause ----------------------------------


class Proved(NamedTuple):
    """One proved clause (or block of exclusions): head, rule, sentence, worst-case margin."""

    head: int
    rule: str
    where: str
    sentence: str
    margin: Fraction


def obligations(spec: Specification, gated: list[int], cell: tuple[int, ...]) -> list[tuple[int, int | None]]:
    """List (rule, region): region is None where the gate switches the rule on, else the ungated region."""
    result: list[tuple[int, int | None]] = []
    for i, rule in enumerate(spec.rules):
        if any(r in cell for r in rule.regions):
            result.append((i, None))
        else:
            result.extend((i, r) for r in rule.regions if r not in gated)
    return result


def fallback_holds(spec: Specification, clause: list[Literal], y: list[Fraction]) -> bool:
    """Whether a constant output satisfies one literal of the clause for every input of the domain."""
    for literal in clause:
        excess = sum(v * y[j] for j, v in literal.y.items()) - literal.bound
        for k, v in literal.x.items():
            excess += max(v * spec.low[k], v * spec.high[k]) + abs(v) * (U * spec.sizes[k] + TINY)
        if excess < 0 or (excess == 0 and not literal.strict):
            return True
    return False


def read_proofs(data: Any) -> dict[tuple[Any, ...], Any]:
    """Index the proofs: clauses by (head, rule, region, clause), exclusions with clause -1, empty by (head, region)."""
    proofs: dict[tuple[Any, ...], Any] = {}
    for entry in items(data, "proofs"):
        require(isinstance(entry, dict), "proof: expected an object")
        if "empty" in entry:
            head, region, proof = fields(entry, "head region empty", "proof")
            key: tuple[Any, ...] = (head, region)
        elif "exclusions" in entry:
            head, rule, region, proof = fields(entry, "head rule region exclusions", "proof")
            key = (head, rule, region, -1)
        elif "boxes" in entry:
            head, rule, region, clause, boxes = fields(entry, "head rule region clause boxes", "proof")
            key, proof = (head, rule, region, clause), items(boxes, "boxes")
        else:
            head, rule, region, clause, weights, mu = fields(entry, "head rule region clause lambda mu", "proof")
            key, proof = (head, rule, region, clause), (weights, mu)
        require(all(type(part) is int or part is None for part in key), "proof: malformed key")
        require(key not in proofs, f"proof {key}: given twice")
        proofs[key] = proof
    return proofs


def clause_margin(head: Head, clause: list[Literal], proof: tuple[Any, Any], allowed: set[int], what: str) -> Fraction:
    """Prove a clause by multipliers (lambda, mu) and return the margin."""
    weights = [number(w, "lambda") for w in items(proof[0], "lambda")]
    require(len(weights) == len(clause), f"{what}: one lambda per literal")
    require(min(weights) >= 0 and sum(weights) > 0, f"{what}: lambda must be >= 0 and not all 0")
    mu = multipliers_of(proof[1], allowed, what)
    bound = head.clause_bound(clause, weights, [head.spec.rows[r] for r in mu], list(mu.values()))
    tight = any(w > 0 and not literal.strict for w, literal in zip(weights, clause, strict=True))
    require(bound < 0 or (bound == 0 and tight), f"{what} is not proved (short by {approximate(bound / sum(weights))})")
    return -bound / sum(weights)


def pair_weights(proof: Any, pairs: list[tuple[int, int]], m: int, block: bytes) -> tuple[float, ...]:
    """Read the two weights of every pair: one by one, or as those of its labels, with exceptions."""
    what = "exclusions proof"
    if isinstance(proof, dict) and "offset" in proof:
        (offset,) = fields(proof, "offset", what)
        return read_block(block, offset, len(pairs), "f", what)
    label_weights, exceptions, count = fields(proof, "labels exceptions count", what)
    weights = read_block(block, label_weights, (m + 1) // 2, "f", what)
    named = read_block(block, exceptions, count, "I", what)
    given = read_block(block, exceptions + 8 * count, count, "f", what)
    own = {named[i : i + 2]: given[i : i + 2] for i in range(0, len(named), 2)}
    require(len(own) == count, f"{what}: an exception given twice")
    return tuple(w for h, k in pairs for w in own.get((h, k), (weights[h], weights[k])))


def boxes_margin(
    head: Relaxed, clause: list[Literal], nodes: list[Any], active: set[int], shared: set[int], what: str
) -> Fraction:
    """Prove a clause box by box and return the least margin. Cuts come before their boxes, so that all is covered."""
    stack, margins = [head.root(active)], []
    for node in nodes:
        require(bool(stack) and isinstance(node, dict), f"{what}: boxes that belong to no cut")
        low, high = stack.pop()
        if "at" in node:
            position, at_data = fields(node, "input at", "cut")
            k, at = index(position, len(low), "cut"), number(at_data, "cut")
            require(low[k] < at < high[k] and nearest(at, "float32") == at, f"{what}: cut outside of its box")
            stack.append(([*low[:k], at, *low[k + 1 :]], high))
            stack.append((low, [*high[:k], at, *high[k + 1 :]]))
        elif "empty" in node:
            (proof,) = fields(node, "empty", "box")
            mu = multipliers_of(proof, active | shared, what)
            rows = [(head.spec.rows[r].terms, head.spec.rows[r].closed) for r in mu]
            require(bounded({}, rows, list(mu.values()), low, high) < 0, f"{what}: a box is not proved empty")
        else:
            slopes, weights, mu_data = fields(node, "slopes lambda mu", "box")
            one = head.over((low, high), slopes)
            margins.append(clause_margin(one, clause, (weights, mu_data), active | shared, what))
    require(not stack, f"{what}: a box without a proof")
    return min(margins, default=Fraction(0))


def check_head(
    spec: Specification, head: Head | Relaxed, fallback: list[Fraction] | None, number_of: int, cell: tuple[int, ...],
    gated: list[int], proofs: dict[tuple[Any, ...], Any], block: bytes, exclusion_margin: PairProof,
) -> list[Proved]:  # fmt: skip
    """Check all obligations of one head; remove the proofs that were used."""
    proved: list[Proved] = []
    used: set[tuple[Any, ...]] = set()
    shared = set(range(spec.stated, len(spec.rows)))
    for rule_index, region in obligations(spec, gated, cell):
        rule = spec.rules[rule_index]
        active = {r for g in cell for r in spec.regions[g]} | set(spec.regions[region] if region is not None else ())
        if (number_of, region) in proofs:
            used.add((number_of, region))
            mu = multipliers_of(proofs[number_of, region], active | shared, "empty region")
            halfspaces = [(spec.rows[r].terms, spec.rows[r].closed) for r in mu]
            bound = bounded({}, halfspaces, list(mu.values()), spec.low, spec.high)
            require(bound < 0, f"head {number_of}, region {region}: not proved empty")
            continue
        where = "where " + " and ".join(sentence_of_row(spec, r) for r in sorted(active)) if active else "everywhere"
        for c, clause in enumerate(rule.clauses):
            key = (number_of, rule_index, region, c)
            sentence = " or ".join(sentence_of_literal(spec, literal) for literal in clause)
            require(key in proofs, f"rule {rule.name!r}, head {number_of}, clause {c}: no proof for: {sentence}")
            proof, what = proofs.pop(key), f"rule {rule.name!r} {where}: {sentence}"
            require(isinstance(proof, list) == isinstance(head, Relaxed), f"{what}: proof for another kind of bounds")
            if isinstance(head, Relaxed):
                margin = boxes_margin(head, clause, proof, active, shared, what)
            else:
                margin = clause_margin(head, clause, proof, active | shared, what)
            if fallback is not None:
                require(fallback_holds(spec, clause, fallback), f"rule {rule.name!r}: the fallback output breaks it")
            proved.append(Proved(number_of, rule.name, where, sentence, margin))
        if rule.exclusions:
            key = (number_of, rule_index, region, -1)
            require(key in proofs, f"rule {rule.name!r}, head {number_of}: no proof for the exclusions")
            if isinstance(head, Relaxed):
                trees = items(proofs.pop(key), "exclusions proof")
                require(len(trees) == len(rule.exclusions), "exclusions proof: one proof per pair")
                margin = min(
                    boxes_margin(head, exclusion(pair), items(nodes, "boxes"), active, shared, f"rule {rule.name!r}")
                    for pair, nodes in zip(rule.exclusions, trees, strict=True)
                )
            else:
                lam = pair_weights(proofs.pop(key), rule.exclusions, len(spec.outputs), block)
                margin = exclusion_margin(head, rule.exclusions, lam)
            if fallback is not None:
                bad = any(fallback[h] >= 0 and fallback[k] >= 0 for h, k in rule.exclusions)
                require(not bad, f"rule {rule.name!r}: the fallback output breaks it")
            names = [f"not ({spec.outputs[h]} and {spec.outputs[k]})" for h, k in rule.exclusions[:3]]
            more = f" and {len(rule.exclusions) - 3:,} more exclusions" if len(rule.exclusions) > 3 else ""
            proved.append(Proved(number_of, rule.name, where, "; ".join(names) + more, margin))
    for key in used:
        del proofs[key]
    return proved


def sentence_of_row(spec: Specification, row: int) -> str:
    """Print a half-space in the names of the inputs."""
    terms, bound, strict, _, _ = spec.rows[row]
    return comparison_text(terms, bound, strict, spec.inputs)


def sentence_of_literal(spec: Specification, literal: Literal) -> str:
    """Print a literal in the names of outputs and inputs."""
    m = len(spec.outputs)
    terms = {**literal.y, **{m + k: v for k, v in literal.x.items()}}
    return comparison_text(terms, literal.bound, literal.strict, spec.outputs + spec.inputs)


# --- 8. The whole -----------------------------------------------------------------------------------------


def check(
    certificate: bytes, tensors: dict[str, Tensor], block: bytes, bound_files: dict[str, bytes],
    exclusion_margin: PairProof = Head.exclusion_margin,
) -> list[Proved]:  # fmt: skip
    """Check a certificate against weights, block (empty: none) and the files it binds; return what is proved.

    Whatever is wrong raises Rejected. A caller may bring another proof of the exclusions; on its own this program uses
    its own.
    """
    document = read_json(certificate, "certificate")
    require(isinstance(document, dict) and document.get("format") == "smle-certificate", "not an smle certificate")
    version = document.get("version")
    require(type(version) is int and version == VERSION, f"certificate version {str(version)[:20]!r} is not supported")
    names = "format version statement binds program specification gate coverage proofs digest"
    *_, statement, binds, program, specification, gate, coverage, proof_data, digest = fields(
        document, names, "certificate"
    )
    require(certificate == canonical(document) + b"\n", "certificate: not in canonical form")
    body = {key: value for key, value in document.items() if key != "digest"}
    require(digest == hashlib.sha256(canonical(body)).hexdigest(), "certificate.json was changed: digest differs")
    files = {**bound_files, "block": block} if block else bound_files  # an empty file is not an absent one
    actual = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    actual["weights"] = weights_digest(tensors)
    roles = {"weights": "model.safetensors", "model": "model.json", "rules": "rules.yaml", "block": "certificate.bin"}
    for role, expected in zip(roles, fields(binds, " ".join(roles), "binds"), strict=True):
        require(expected == actual.get(role), f"{roles[role]} is not the file that was certified: digest differs")
    require(statement == STATEMENT, "certificate: the statement is not that of this version")
    precision, clip, kind = fields(program, "precision clip bounds", "program")
    require(precision == "float32", "program: only float32 heads are supported")
    require(
        (clip, kind) in (("clamp", "constant"), *(("where", known) for known in ("constant", "affine", "network"))),
        "program: unknown kind",
    )

    spec = Specification(specification, block)
    require(bool(spec.rules), "specification: no rules, so nothing is claimed")
    (gate_regions,) = fields(gate, "regions", "gate")
    gated = [index(r, len(spec.regions), "gate") for r in items(gate_regions, "gate")]
    require(len(set(gated)) == len(gated), "gate: region given twice")
    check_guard(spec, tensors, gated)
    require("gate.signatures" in tensors and len(tensors["gate.signatures"].shape) == 2, "weights: gate.signatures")
    count = tensors["gate.signatures"].shape[0]
    require(0 < count <= (MAX_HEADS if gated else 1), "gate.signatures: expected one row per head")
    bits = values(tensors, "gate.signatures", "U8", (count, len(gated)))
    require(set(bits) <= {0, 1}, "gate.signatures: expected zeros and ones, one row per head")
    rows = [bits[c * len(gated) : (c + 1) * len(gated)] for c in range(count)]
    cells = [tuple(sorted(g for g, bit in zip(gated, row, strict=True) if bit)) for row in rows]
    require(len(set(cells)) == count, "gate.signatures: the same signature twice")
    check_coverage(spec, coverage, gated, cells)

    bounds = Bounds(spec, tensors, kind) if kind != "network" else None
    heads = count - 1 if cells[-1] == () and len(gated) == len(spec.regions) else count  # the last may be free
    check_names(tensors, clip, kind, heads < count)
    m, n, d = len(spec.outputs), math.prod(tensors["bounds.lower"].shape), len(spec.inputs)
    W = values(tensors, "heads.weight", "F32", (heads, m, n))
    b = values(tensors, "heads.bias", "F32", (heads, m))
    V = values(tensors, "heads.passthrough", "F32", (heads, m, d)) if "heads.passthrough" in tensors else []
    fallback = values(tensors, "heads.fallback", "F32", (heads, m)) if clip == "clamp" else None
    proofs = read_proofs(proof_data)
    proved: list[Proved] = []
    for c in range(heads):
        own = W[c * m * n : (c + 1) * m * n], V[c * m * d : (c + 1) * m * d], b[c * m : (c + 1) * m]
        head = Relaxed(spec, tensors, block, own) if bounds is None else Head(spec, bounds, *own)
        instead = fallback[c * m : (c + 1) * m] if fallback is not None else None
        proved += check_head(spec, head, instead, c, cells[c], gated, proofs, block, exclusion_margin)
    require(not proofs, f"proof {list(proofs)[:1]} is for no obligation")
    return proved


def hidden_layers(tensors: dict[str, Tensor]) -> int:
    """Count the hidden layers of bounds by a network."""
    count = 0
    while f"bounds.hidden.{count}.bias" in tensors:
        count += 1
    return count


def check_names(tensors: dict[str, Tensor], clip: str, kind: str, free: bool) -> None:
    """Check that the weights hold what the stated program reads, and nothing else beside the backbone."""
    prescribed = {f"domain.{side}_{fmt}" for side in ("lower", "upper") for fmt in FORMATS}
    prescribed |= {f"gate.constants_{fmt}" for fmt in FORMATS}
    prescribed |= {"gate.coefficients", "gate.thresholds", "gate.signatures", "heads.weight", "heads.bias"}
    prescribed |= {"bounds.lower", "bounds.upper"} | ({"heads.fallback"} if clip == "clamp" else set())
    prescribed |= {"bounds.lower_slope", "bounds.upper_slope"} if kind != "constant" else set()
    if kind == "network":
        layers = range(max(hidden_layers(tensors), 1))
        prescribed |= {f"bounds.hidden.{i}.{part}" for i in layers for part in ("weight", "bias")}
    prescribed |= {"free.weight", "free.bias"} if free else set()
    names = {name for name in tensors if not name.startswith("backbone.")}
    names -= {"heads.passthrough"} if clip == "where" else set()  # optional there
    odd = sorted(names ^ prescribed)
    require(not odd, f"weights: tensor {odd[:1]} is missing or not part of the stated program")


def domain_text(spec: Specification, formats: str = "float32 and float64") -> list[str]:
    """Say for which inputs the proof holds: every part of the domain that it uses."""
    grouped = {k for group in spec.groups for k in group}
    lines = [
        f"for all {name} in [{decimal(spec.lower[k])}, {decimal(spec.upper[k])}]"
        for k, name in enumerate(spec.inputs)
        if k not in grouped
    ]
    for group in spec.groups:
        lines.append(
            f"for all inputs in which exactly one of {', '.join(spec.inputs[k] for k in group)} is 1, the others 0"
        )
    return [
        *lines,
        f"for all {formats} numbers there; the ends of a range are read as the nearest numbers of the format",
    ]


def assumptions_text(whole: list[str] | None, stand_ins: list[tuple[str, str]] | None) -> list[str]:
    """Say what the proof assumes, and what was declared beside it: whole numbers, stand-ins (None: not known here)."""
    lines = list(STATEMENT["assumptions"])
    if whole:
        lines.append(
            f"Inputs declared as whole numbers are whole: {', '.join(map(term, whole))}. The proof does not use it; "
            "between them a rule may be read as if it began at the next one."
        )
    for name, value in stand_ins or []:
        lines.append(
            f"A missing value of {term(name)} is replaced by {visible(value)} before the model sees it. The proof does "
            "not use it: the rules hold for that value."
        )
    facts = [("which inputs are whole numbers", whole), ("what stands in for missing values", stand_ins)]
    unknown = [words for words, known in facts if known is None]
    if unknown:
        lines.append(f"Not stated here, and not used by the proof: {' and '.join(unknown)}. The rules file says it.")
    return lines


def proved_text(item: Proved) -> str:
    """Print one proved statement."""
    rule = item.rule.replace("'", escaped("'"))
    return f"proved: rule '{rule}': {item.where}: {item.sentence}   (margin {approximate(item.margin)})"


def read_file(path: str, what: str, folder: int | None = None) -> bytes | None:
    """Return the bytes of a regular file (in an open folder), or None if there is nothing of that name.

    Pipes and devices are refused without opening them. Should one be put there just then, opening does not wait.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))
    try:
        os.stat(path, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Rejected(f"{what}: not readable ({error.strerror})") from None
    try:
        require(stat.S_ISREG(os.stat(path, dir_fd=folder).st_mode), f"{what}: not a regular file")
        with open(os.open(path, flags, dir_fd=folder), "rb") as file:
            found = os.fstat(file.fileno())
            require(stat.S_ISREG(found.st_mode), f"{what}: not a regular file")
            require(found.st_size <= MAX_FILE, f"{what}: file too large")
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise Rejected(f"{what}: not readable ({error.strerror})") from None
    require(len(data) <= MAX_FILE, f"{what}: file too large")
    return data


def read_folder(folder: str) -> tuple[bytes, dict[str, Tensor], bytes, dict[str, bytes]]:
    """Read the files of a model folder; certificate.bin, model.json and rules.yaml may be absent if not bound."""

    def read(name: str) -> bytes | None:
        return read_file(os.path.join(folder, name), name)

    certificate, weights = read("certificate.json"), read("model.safetensors")
    if certificate is None or weights is None:
        raise Rejected("expected certificate.json and model.safetensors in the folder")
    others = {"model": read("model.json"), "rules": read("rules.yaml")}
    bound = {name: data for name, data in others.items() if data is not None}
    block = read("certificate.bin")
    require(block != b"", "certificate.bin: empty; expected no such file")
    return certificate, read_weights(weights), block or b"", bound


def main(arguments: list[str]) -> int:
    """Check a model folder: exit code 0 proved, 1 rejected, 2 wrong call."""
    if len(arguments) != 1 or not os.path.isdir(arguments[0]):
        print("usage: checker.py MODEL_DIR", file=sys.stderr)
        return 2
    try:
        files = read_folder(arguments[0])
        proved = check(*files)
    except Rejected as reason:
        print_lines([f"REJECTED: {reason}"])
        return 1
    spec = Specification(read_json(files[0], "certificate")["specification"], files[2])
    print_lines(domain_text(spec))
    print_lines(proved_text(item) for item in proved)
    print_lines(f"assumed: {line}" for line in assumptions_text(None, None))
    print(f"PROVED: {len(proved)} statements, in exact arithmetic, for every input of the domain.")
    return 0


def print_lines(lines: Iterable[str]) -> None:
    """Print lines. What is not plainly visible, or cannot be written, is escaped, also in names inside of reasons."""
    for line in lines:
        safe = "".join(c if is_plain(c) or c == "\\" else escaped(c) for c in line)
        encoding = sys.stdout.encoding or "utf-8"
        print(safe.encode(encoding, "backslashreplace").decode(encoding))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
