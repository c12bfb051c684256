"""Two versions of a price list: the numbers that differ are named, the first ten of many, and all of them in JSON."""

import json

import pytest

from smle import Specification
from smle.advice.compare import compare
from smle.errors import RuleError
from support.commands import run


def rules(values, articles=None, regions=("north", "south")):
    articles = list(values) if articles is None else articles
    return Specification.build(
        inputs={"article": {"categories": articles}, "region": {"categories": list(regions)}},
        outputs=["price"],
        tables={"cap": {"key": "article", "values": values}},
        rules={"cap": "price <= cap[article]", "low": "price >= 0"},
    )


CAPS = {f"art{i:03}": 100 + i for i in range(40)}


def test_changed_numbers_are_named():
    found = compare(rules(CAPS), rules({**CAPS, "art017": 125, "art003": 99.5}))
    assert [entry.text for entry in found.entries] == ["cap[art003]: 103 -> 99.5", "cap[art017]: 117 -> 125"]
    assert found.verdict == "neither"
    assert "  in tables: 2 changed\n    cap[art003]: 103 -> 99.5\n    cap[art017]: 117 -> 125" in found.table()
    assert found.to_json()["entries"][0] == {"entry": "cap[art003]", "old": "103", "new": "199/2"}
    assert compare(rules(CAPS), rules(CAPS)).entries == ()


def test_of_many_the_first_ten_are_shown():
    found = compare(rules(CAPS), rules({name: value + 1 for name, value in CAPS.items()}))
    lines = found.table().splitlines()
    assert "  in tables: 40 changed" in lines
    assert sum("cap[art" in line and "->" in line for line in lines) == 10
    assert lines[-1].strip() == "... and 30 more"
    assert len(found.to_json()["entries"]) == 40


def test_articles_that_come_and_go_are_named_where_files_cannot_be_compared():
    fewer = {name: value for name, value in CAPS.items() if name != "art000"}
    with pytest.raises(RuleError, match=r"categories of 'article' differ.*removed.*cap\[art000\]: removed, 100"):
        compare(rules(CAPS), rules(fewer))
    with pytest.raises(RuleError, match=r"2 added.*cap\[new\]: added, 7; cap\[old\]: added, 8"):
        compare(rules(CAPS), rules({**CAPS, "new": 7, "old": 8}))


def test_tables_by_two_keys_and_model_folders(tmp_path):
    def spec(south):
        return Specification.build(
            inputs={"a": {"categories": ["x", "y"]}, "r": {"categories": ["n", "s"]}},
            outputs=["price"],
            tables={"t": {"keys": ["a", "r"], "values": {"x": {"n": 1, "s": 2}, "y": {"n": 3, "s": south}}}},
            rules={"cap": "price <= t[a, r]"},
        )

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "rules.yaml").write_text(spec(4).to_yaml())
    (tmp_path / "new.yaml").write_text(spec(5).to_yaml())
    result = run("rules", "diff", folder, tmp_path / "new.yaml", "--json")
    assert json.loads(result.output)["entries"] == [{"entry": "t[y, s]", "old": "4", "new": "5"}]
