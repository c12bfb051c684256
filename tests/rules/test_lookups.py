"""Tables of numbers by category: stated inline or in files, looked up in rules, printed and read back."""

from __future__ import annotations

from fractions import Fraction

import pytest

from smle.errors import RuleError
from smle.rules import Specification, rule, variables

START = (
    "inputs: {article: {categories: [a, b, c]}, region: {categories: [north, south]}, w: [0, 10]}\noutputs: [y, z]\n"
)


def spec_of(tables: str, *rules: str) -> Specification:
    stated = "".join(f"  - {{name: r{i}, then: '{text}'}}\n" for i, text in enumerate(rules))
    return Specification.from_yaml(f"{START}tables: {{{tables}}}\nrules:\n{stated}")


CAP = "cap: {key: article, values: {a: 10, b: 12.5}, default: 1/3}"
BOTH = "both: {keys: [article, region], values: {a: {north: 1, south: 2}, b: {north: 3, south: 4}}, default: -1}"


def test_a_lookup_is_a_sum_over_the_columns_of_its_category():
    (literal,) = spec_of(CAP, "y <= 2 * cap[article] + w").rules[0].requirement.clauses[0].literals
    assert dict(literal.inputs) == {0: -20, 1: -25, 2: Fraction(-2, 3), 5: -1}
    assert literal.bound == 0


@pytest.mark.parametrize("text", ["lo[article] <= y <= cap[article]", "abs(y - cap[article]) <= lo[article]"])
def test_every_category_is_compared_with_its_own_number(text):
    spec = spec_of(f"{CAP}, lo: {{key: article, values: {{a: 1, b: 0, c: 0.2}}}}", text)
    caps, lows = [Fraction(10), Fraction(25, 2), Fraction(1, 3)], [Fraction(1), Fraction(0), Fraction(1, 5)]
    for member, (cap, low) in enumerate(zip(caps, lows, strict=True)):
        x = [Fraction(int(k == member)) for k in range(3)] + [Fraction(1), Fraction(0), Fraction(5)]
        ends = (low, cap) if text.startswith("lo") else (cap - low, cap + low)
        for y in (*ends, ends[0] - Fraction(1, 10**9), ends[1] + Fraction(1, 10**9)):
            assert bool(spec.violated(x, [y, Fraction(0)])) == (not ends[0] <= y <= ends[1])


def test_all_doors_make_the_same_rules(tmp_path):
    y, z, w, cap, both, article, region = variables("y z w cap both article region")
    in_python = Specification.build(
        inputs={"article": ["a", "b", "c"], "region": ["north", "south"], "w": (0, 10)},
        outputs=["y", "z"],
        tables={
            "cap": {"key": "article", "values": {"a": 10, "b": 12.5}, "default": Fraction(1, 3)},
            "both": {
                "keys": ["article", "region"],
                "values": {"a": {"north": 1, "south": 2}, "b": {"north": 3, "south": 4}},
                "default": -1,
            },
        },
        rules=[rule("r0", then=y <= cap[article] - w), rule("r1", then=(z <= both[article, region]) | (y <= cap["a"]))],
    )
    texts = ["y <= cap[article] - w", "z <= both[article, region] or y <= cap[a]"]
    assert in_python == spec_of(f"{CAP}, {BOTH}", *texts)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/list.csv").write_text("article,price,region\na,10,x\n b ,12.5,x\n\n")
    file = tmp_path / "rules.yaml"
    stated = f"cap: {{key: article, file: sub/list.csv, column: price, default: 1/3}}, {BOTH}"
    rules = "".join(f"  - {{name: r{i}, then: '{text}'}}\n" for i, text in enumerate(texts))
    file.write_text(f"{START}tables: {{{stated}}}\nrules:\n{rules}")
    assert Specification.from_file(file) == in_python


def test_printed_rules_read_back_as_the_same():
    spec = spec_of(
        f"{CAP}, {BOTH}, odd name: {{key: article, values: {{a: 1e30, b: -0.5, c: 7}}}}",
        "y <= cap[article]",
        "z <= both[article, region] and y >= `odd name`[b] - 1",
        "w >= cap[article] implies y + z <= 3 * both[article, south]",
    )
    assert Specification.from_yaml(spec.to_yaml()) == spec


def test_of_two_keys_the_shorter_one_is_a_condition():
    spec = spec_of(BOTH, "z <= both[article, region]")
    assert [(r.name, r.when, r.then) for r in spec.rules] == [
        ("r0 (region north)", "region == north", "z <= both[article, north]"),
        ("r0 (region south)", "region == south", "z <= both[article, south]"),
    ]
    x = [Fraction(v) for v in (0, 1, 0, 0, 1, 0)]
    assert spec.violated(x, [Fraction(0), Fraction(4)]) == ()
    assert spec.violated(x, [Fraction(0), Fraction(5)]) == ("r0 (region south)",)


def test_a_condition_may_look_up():
    stated = "rules:\n  - {name: r, when: 'w >= cap[article]', then: y <= 0}\n"
    spec = Specification.from_yaml(f"{START}tables: {{{CAP}}}\n{stated}")
    for member, w, on in ((0, 10, True), (0, 9, False), (2, 1, True), (1, 10, False)):
        x = [*(Fraction(int(k == member)) for k in range(3)), Fraction(1), Fraction(0), Fraction(w)]
        assert bool(spec.violated(x, [Fraction(1), Fraction(0)])) == on


def test_entries_are_named_by_what_a_clause_reads():
    lows = "lo: {key: article, values: {a: 1, b: 0, c: 2}}"
    texts = ["lo[article] <= y <= cap[article]", "z <= 2 * both[article, region]", "z >= lo[article] - cap[article]"]
    spec = spec_of(f"{CAP}, {BOTH}, {lows}", *texts)
    low, high = spec.entries[0]
    assert [entry.names[2] for entry in low + high] == ["lo[c]", "cap[c]"]
    ((entry,),) = spec.entries[1]
    assert entry.names == ("both[a, north]", "both[b, north]", "both[c, north]")
    ((first, second),) = spec.entries[3]
    assert (first.names[0], second.names[0]) == ("lo[a]", "cap[a]")


@pytest.mark.parametrize(
    ("tables", "text", "message"),
    [
        ("cap: {key: article, values: {a: 1, b: 2}}", "y <= 1", "no number for 'c' of 'article'.*default"),
        ("cap: {key: article, values: {a: 1, b: 2, c: 3, d: 4}}", "y <= 1", "'d' is not a category of 'article'"),
        ("cap: {key: articel, values: {a: 1}}", "y <= 1", "'articel' is not an input with categories. Did you mean"),
        ("cap: {key: w, values: {a: 1}}", "y <= 1", "'w' is not an input with categories"),
        ("cap: {values: {a: 1}}", "y <= 1", "expected 'key' .or 'keys'., and either 'values' or 'file'"),
        ("cap: {key: article, values: [1, 2, 3]}", "y <= 1", "'values' as a mapping of categories to numbers"),
        ("cap: {key: article, values: {a: one, b: 1, c: 1}}", "y <= 1", "Table 'cap', a: expected a number. Got 'one'"),
        ("cap: {key: article, vales: {a: 1}}", "y <= 1", "unknown key 'vales'. Did you mean 'values'"),
        ("cap: {key: article, file: prices.csv}", "y <= 1", "only be named in a rules file on disk"),
        ("both: {keys: [article, region], values: {a: 1}}", "y <= 1", "a number for each category of the next key"),
        ("both: {keys: [article, article], values: {a: {a: 1}}}", "y <= 1", "expected different keys"),
        ("w: {key: article, values: {a: 1, b: 1, c: 1}}", "y <= 1", "The name 'w' is used twice"),
        (CAP, "y <= cap", "'cap' is a table. Write 'cap.article.'"),
        (CAP, "y <= cap[region]", "Expected 'article' or one of its categories"),
        (CAP, "y <= cap[d]", "'d' is not a category of 'article'"),
        (CAP, "y <= cap[article, region]", "Expected 1 keys, as in 'cap.article.'"),
        (CAP, "y <= caps[article]", "'caps' is not a table. Did you mean 'cap'"),
        (CAP, "y <= w * cap[article]", "multiplies variables"),
        (CAP, "y <= cap[article", "']'"),
    ],
)
def test_what_is_wrong_is_said(tables, text, message):
    with pytest.raises(RuleError, match=message):
        spec_of(tables, text)


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        ("article,cap\na,1\nb,2\n", "no number for 'c'"),
        ("article,cap\na,1\na,2\nb,1\nc,1\n", "two rows for a"),
        ("article,price\na,1\n", "has no column 'cap'. It has article, price"),
        ("article,cap\na,1,2\n", "line 2: expected 2 cells. Got 3"),
        ("article,article\na,1\n", "different names of columns"),
        ("article,cap\na,\nb,1\nc,1\n", "Table 'cap', a: expected a number"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, csv, message):
    (tmp_path / "cap.csv").write_text(csv)
    file = tmp_path / "rules.yaml"
    rules = "rules:\n  - {name: r, then: 'y <= cap[article]'}\n"
    file.write_text(f"{START}tables: {{cap: {{key: article, file: cap.csv}}}}\n{rules}")
    with pytest.raises(RuleError, match=message):
        Specification.from_file(file)
    file.write_text(file.read_text().replace("cap.csv", "/etc/cap.csv"))
    with pytest.raises(RuleError, match="relative to the rules file"):
        Specification.from_file(file)


# --- Rules that are merged


def listed(members, numbers, *, text="price <= {}", when="article == {}", more="") -> Specification:
    names = [f"a{i}" for i in range(40)]
    rules = "".join(
        f"  - {{name: cap {m}, when: {when.format(f'a{m}')}, then: '{text.format(v)}'}}\n"
        for m, v in zip(members, numbers, strict=True)
    )
    start = f"inputs: {{article: {{categories: [{', '.join(names)}]}}, w: [0, 9]}}\noutputs: [price, fee]\n"
    return Specification.from_yaml(f"{start}rules:\n{rules}{more}  - {{name: other, then: fee <= 1 or price <= 2}}\n")


def test_rules_that_differ_in_category_and_numbers_are_merged():
    spec = listed(range(40), range(40))
    table, other = spec.merged.rules
    assert table.name == "cap 0, and 39 more"
    assert table.entries == tuple((k, f"cap {k}") for k in range(40))
    assert other == spec.rules[-1]
    assert not table.regions[0].rows
    assert spec.merged.merged == spec.merged


@pytest.mark.parametrize(
    ("text", "when"),
    [("price <= {}", "article == {}"), ("price < {} or fee <= 0.5 * w", "article == {} and w >= 2"),
     ("0 <= price and price <= {} and fee >= w - {}", "article == {}")],
)  # fmt: skip
def test_merged_rules_say_the_same(text, when):
    members = [k for k in range(40) if k not in (3, 17, 39)]
    spec = listed(members, [k % 7 for k in members], text=text.replace("{}", "{0}"), when=when)
    assert len(spec.merged.rules) == 2
    for k in range(40):
        for w in (0, 2, 9):
            x = [Fraction(int(i == k)) for i in range(40)] + [Fraction(w)]
            for price in (-1, k % 7, k % 7 + 1):
                for fee in (0, 1, 9):
                    y = [Fraction(price), Fraction(fee)]
                    names = {rule.name_at(x) for rule in spec.merged.rules if rule.name in spec.merged.violated(x, y)}
                    assert names == set(spec.violated(x, y))


def test_rules_that_differ_in_more_are_left_alone():
    assert listed(range(20), range(20)).merged.rules == listed(range(20), range(20)).rules  # few
    halves = listed(range(40), range(40), text="price <= {0} + {0} * w")
    assert halves.merged is halves  # in factors
    twice = "".join(f"  - {{name: again {m}, when: article == a{m}, then: price <= 5}}\n" for m in range(5))
    assert [r.name for r in listed(range(40), range(40), more=twice).merged.rules] == [
        "cap 0, and 39 more", *(f"again {m}" for m in range(5)), "other",
    ]  # fmt: skip
