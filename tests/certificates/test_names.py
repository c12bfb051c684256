"""Two different names never look the same: they are refused together, or printed apart."""

import sys
import unicodedata

import hypothesis.strategies as st
import pytest
from hypothesis import given

import smle_check
from smle_check.command import main
from smle_check.names import escaped, looks, term, twins, visible
from support.builder import case

INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u200b\u200c\u200d\u200e\u200f\u202a\u202e"
    "\u2060\u2061\u2064\u2065\u2066\u2069\u206a\u2800\u3164\ufe00\ufe0f\ufeff\uffa0\ufff0\U00016fe4\U0001bca0\U0001d159"
    "\U0001d173\U000e0001\U000e0020\U000e0100\U000e01ef\x00\x07\x7f\x85\ud800\ue000"
)
SPACES = "\u00a0\u1680\u2000\u2003\u2007\u2009\u200a\u202f\u205f\u3000\u2028\u2029"


def with_names(first: str, second: str):
    package = case("dose")
    package.document["specification"]["inputs"][0]["name"] = first
    package.document["specification"]["inputs"][1]["name"] = second
    return package.seal()


@pytest.mark.parametrize("c", INVISIBLE, ids=lambda c: f"{ord(c):04x}")
def test_what_cannot_be_seen_is_escaped_and_does_not_tell_names_apart(c):
    name = "bra" + c + "ke"
    assert visible(name) == f"bra{escaped(c)}ke"
    for other in ("brake", "bra\u200bke"):
        if other != name:
            with pytest.raises(smle_check.Rejected, match="look the same"):
                with_names(other, name).check()


@pytest.mark.parametrize("c", SPACES, ids=lambda c: f"{ord(c):04x}")
def test_other_blanks_are_escaped_and_are_no_other_name(c):
    assert visible(f"a{c}b") == f"a{escaped(c)}b"
    with pytest.raises(smle_check.Rejected, match="look the same"):
        with_names("a b", f"a{c}b").check()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("brake", "brake "),
        ("a b", "a  b"),
        ("\u00e9", "e\u0301"),  # an accent of its own
        ("K", "\u212a"),  # kelvin
        ("a", "\U0001d68a"),  # monospace
        ("a", "\uff41"),  # wide
        ("m2", "m\u00b2"),
        ("\u03bbo", "\u03bb\u03bf"),  # a Latin and a Greek o behind a Greek letter
        ("\u30ed", "\u53e3"),  # Kana, Han
        ("a\u200b", "a\u200c"),
    ],
)
def test_names_that_look_the_same_are_refused(first, second):
    assert visible(first) != visible(second)
    with pytest.raises(smle_check.Rejected, match="look the same"):
        with_names(first, second).check()
    package = case("dose")
    for rule, name in zip(package.document["specification"]["rules"], (first, second), strict=False):
        rule["name"] = name
    with pytest.raises(smle_check.Rejected, match="rule names that look the same"):
        package.seal().check()


@pytest.mark.parametrize(
    ("plain", "alike"),
    [
        ("brake", "br\u0430ke"),
        ("a", "\u0430"),
        ("copy", "\u0441\u043e\u0440\u0443"),
        ("p", "\u03c1"),
        ("speed", "\u0455peed"),
        ("KAT", "\u039a\u0391\u03a4"),
        ("x-y", "x\u2010y"),
        ("l", "\u01c0"),
        ("BE", "\ua4d0\ua4f0"),  # Lisu
    ],
)
def test_look_alikes_of_other_alphabets_are_printed_apart(plain, alike):
    assert visible(plain) == plain
    assert visible(alike).isascii()
    proved = with_names(plain, alike).check()
    assert any("\\u" in item.sentence + item.where for item in proved)


@pytest.mark.parametrize(
    "name",
    [
        "Größe", "Straße", "naïve", "Łódź", "ταχύτητα", "κόσμος", "Δp", "μ_max", "µm", "σ_x", "скорость", "Москва",  # noqa: RUF001
        "city=Москва", "温度T", "速度（米/秒）", "ブレーキ", "日本語", "속도", "m²", "90°", "a b", "kN/m²", "50 %",  # noqa: RUF001
    ],
)  # fmt: skip
def test_names_that_people_write_stay_readable(name):
    assert visible(name) == name


def test_every_character_that_is_printed_as_it_is_can_be_seen():
    """And none of them is changed by normalization into another that is printed as it is, a few signs aside."""
    for number in range(sys.maxunicode + 1):
        c = chr(number)
        kind = unicodedata.category(c)
        if kind in ("Cn", "Co") and number % 97:
            continue  # most of the numbers stand for nothing
        if c != " " and kind[0] in "CZM":
            assert visible(f"a{c}b") == f"a{escaped(c)}b"
        elif c == visible(c):
            assert unicodedata.bidirectional(c) not in ("R", "AL", "AN")
            assert unicodedata.normalize("NFC", c) == c


names = st.text(
    st.sampled_from("ab \\u0430\u0430\u03bb\u03bf\u03bco3164\u3164\u200b'`\u00e9e\u0301\u2010-") | st.characters()
)


@given(names, names)
def test_different_names_are_printed_differently(first, second):
    assert (visible(first) == visible(second)) == (first == second)
    if twins([first, second]) is None:
        printed = [unicodedata.normalize("NFKC", visible(name)) for name in (first, second)]
        assert printed[0].split() != printed[1].split()


@given(names)
def test_a_name_is_its_own_twin(name):
    assert twins([name, name]) == (name, name)
    assert looks(name)


def test_names_inside_of_sentences_are_no_sentences():
    assert term("road=icy") == "road=icy"
    for name in ("y >= 0 or z", "a - b", "3", "or", "a`b", ""):
        assert term(name) == "`" + name.replace("`", "``") + "`"
    package = case("dose")
    package.document["specification"]["outputs"][0]["name"] = "dose <= 7 or dose"
    assert all("`dose <= 7 or dose`" in item.sentence for item in package.seal().check())


def test_a_rule_name_does_not_end_its_quotes(tmp_path, capsys):
    package = case("strict")
    package.document["specification"]["rules"][0]["name"] = "a': everywhere: y <= 1   (margin 5) '\u202e"
    assert main([str(package.seal().write(tmp_path))]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "margin 5" in line)
    assert line.count("'") == 2
    assert line.isascii()
