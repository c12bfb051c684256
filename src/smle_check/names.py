"""Prints names so that different ones never look the same, and refuses names that could be confused."""

import re
import unicodedata
from collections.abc import Iterable

from smle_check.reading import Rejected, require

# Left as they are: printable ASCII but the backslash, a few signs, and Latin, Greek, Cyrillic, Kana, Han and Hangul
# letters, unless they look like something else.
SIGNS = re.compile("[\xa3\xa7\xb0\xb2\xb3\xb5\xb9\xbc-\xbe\u20ac\u3001\u3002\u3005\u300c\u300d\u30fb\uff08\uff09]")
LATIN = re.compile("[A-Za-z\xc0-\u01bf\u01c4-\u024f\u1e00-\u1eff]")
OTHER = re.compile("[\u0370-\u052f\u1f00-\u1fff]")  # Greek and Cyrillic, some of which look Latin
ASIAN = re.compile("[\u3041-\u3096\u30a1-\u30fc\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U000323af]")
# Greek and Cyrillic that look Latin, Cyrillic that looks Greek, Kana that look like Han or other Kana.
_ALIKE = """
0391A 0392B 0395E 0396Z 0397H 0399I 039aK 039cM 039dN 039fO 03a1P 03a4T 03a5Y 03a7X 03b1a 03b9i 03bak 03bdv 03bfo 03c1p
03c5u 0405S 0406I 0408J 0410A 0412B 0415E 041aK 041cM 041dH 041eO 0420P 0421C 0422T 0423Y 0425X 042cb 04aeY 04c0I 051aQ
051cW 0430a 0435e 043eo 0440p 0441c 0443y 0445x 044cb 0455s 0456i 0458j 0475v 04bbh 04cfl 0501d 051bq 051dw 0413\u0393
041b\u039b 041f\u03a0 0424\u03a6 0444\u03c6 0454\u03b5 3078\u30d8 30cb\u4e8c 30ab\u529b 30ed\u53e3 30a8\u5de5 30cf\u516b
30bf\u5915 30c8\u535c 30fc\u4e00
"""
ALIKE = {int(pair[:4], 16): pair[4:] for pair in _ALIKE.split()}
UNSEEN = re.compile(  # ignored or blank, although their category is letter, mark or symbol
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
PARTS = re.compile(r"(?P<blank>\A | \Z| (?= ))|[^\W\d_]+|.", re.DOTALL)
BARE = re.compile(r"(?![\d.=])[\w.=\\]+")


def visible(name: str) -> str:
    """Print a name. Characters that are not plainly visible, or look like others, are escaped by number."""
    if name.isascii() and name.isprintable() and "\\" not in name and name == " ".join(name.split()):
        return name

    def shown(match: re.Match[str]) -> str:
        part = match[0]
        latin = {c for c in OTHER.findall(part) if looks_latin(c)}
        # Keep a Greek or Cyrillic word, but not a letter among Latin ones, or a word that could be Latin.
        alone = not LATIN.search(part) and not latin.issuperset(OTHER.findall(part))
        return "".join(
            c if is_plain(c) and not match["blank"] and (alone or c not in latin) else escaped(c) for c in part
        )

    return PARTS.sub(shown, name)


def is_plain(c: str) -> bool:
    """Return whether a character is plainly visible."""
    if c.isascii() or SIGNS.match(c):
        return c.isprintable() and c != "\\"
    known = LATIN.match(c) or OTHER.match(c) or ASIAN.match(c)
    return bool(known) and unicodedata.category(c)[0] == "L" and unicodedata.normalize("NFKC", c) == c


def looks_latin(c: str) -> bool:
    """Return whether a Greek or Cyrillic letter, accents aside, looks like a Latin one."""
    return ALIKE.get(ord(unicodedata.normalize("NFD", c)[0]), "\xff").isascii()


def escaped(c: str) -> str:
    """Print a character by its number."""
    return f"\\u{ord(c):04x}" if ord(c) < 1 << 16 else f"\\U{ord(c):08x}"


def looks(name: str) -> set[str]:
    """Return what a name may be taken for: without invisible characters, and as printed."""
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
    """Reject names if two are the same or look the same."""
    same = twins(names)
    if same is not None:
        require(same[0] != same[1], f"specification: duplicate {what} {visible(same[0])!r}")
        raise Rejected(f"specification: {what}s that look the same: '{visible(same[0])}' and '{visible(same[1])}'")


def flag_of(name: str) -> str:
    """Return the name of the column that is 1 where an input is missing, else 0."""
    return f"{name} is missing"


def term(name: str) -> str:
    """Print a name inside a sentence: in backticks, unless it is one word with no other meaning there."""
    shown = visible(name)
    return (
        shown
        if BARE.fullmatch(shown) and shown not in ("and", "or", "not", "where", "everywhere")
        else "`" + shown.replace("`", "``") + "`"
    )
