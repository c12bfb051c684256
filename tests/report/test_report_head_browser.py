"""The head of rules in a page: bit by bit what the deployed program computes, and what a reader sees of it."""

import json
from functools import partial
from importlib import resources

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from smle import NetworkClassifier, NetworkRegressor, SafeClassifier, SafeRegressor, Specification
from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import certify_head, program_of
from smle.report import write_report
from smle.report.explorer import grid_head, rules_head
from smle.rules.membership import broken
from support.random_rules import random_rules
from support.rules_cases import LEAVES
from support.sampling import hard_points

LIMITS = """
inputs: {w: [0, 250], age: [18, 90], place: {categories: [north, south]}}
outputs: [y, z]
rules:
  - {name: per kilogram, then: 0 <= y <= 0.05 * w}
  - {name: capped, then: y <= 4}
  - {name: old, when: age > 70 and place == south, then: y <= 2 and z < 1}
  - {name: steep, when: 2 * w + age >= 400, then: z >= 0.001 * w + 0.1}
"""
BANK = """
inputs: {income: [0, 1000000], arrears: {range: [0, 12], integer: true}}
outputs: [card, rate]
rules:
  - {name: affordable, then: 0 <= card <= 0.35 * income and card <= 60000}
  - {name: arrears, when: arrears >= 3, then: card + 100 * rate <= 2000}
  - {name: two lists, then: rate <= 12 or rate >= 14}
  - {name: usury, then: 5 <= rate <= 24.5}
"""
LABELS = """
inputs: {length: [0, 3]}
labels: [cat, dog, animal, tame]
rules:
  - {name: implied, then: dog implies animal}
  - {name: one of them, then: not (cat and dog)}
  - {name: long, when: length >= 2, then: "at_most_one(animal, tame)"}
"""
SCALES = {LEAVES: 5.0, LIMITS: 3.0, BANK: 20000.0, LABELS: 2.0}


def heads():
    """Yield rules and the size of answers."""
    for text, scale in SCALES.items():
        spec = Specification.from_yaml(text)
        yield spec, np.full(len(spec.targets), scale)
    for seed in range(6):
        spec, unit, _ = random_rules(np.random.default_rng(seed), rules=(2, 8))
        yield spec, unit


@pytest.fixture
def page(browser, tmp_path):
    """A blank page with the script of the head in it."""
    path = tmp_path / "blank.html"
    path.write_text("<!doctype html><title>head</title>")
    browser.open(path)
    assets = resources.files("smle.report") / "assets"
    browser.run(
        "".join((assets / name).read_text() for name in ("program.js", "head.js", "grid.js"))
        + "\nObject.assign(window, { makeHead, makeGridHead }); 0"
    )
    return browser


def entered(browser, field, value):
    """Enter a value in the explorer; return what it says then."""
    browser.run(
        f"(() => {{ const f = document.getElementById('{field}'); f.value = '{value}';"
        " f.dispatchEvent(new Event('input')); f.dispatchEvent(new Event('change')); })()"
    )
    browser.settle()
    return browser.run("document.getElementById('readout').innerText")


def points(spec, scale, rng):
    """Return hard inputs and answers: on limits, a little beyond, large, infinite and NaN."""
    X = np.concatenate(list(hard_points(spec, rng, 240, dtype=np.float64)))[:240]
    t = rng.normal(0, 1, (len(X), len(scale))) * scale
    t[::3] = t[::3].round()
    t[::5] = 0
    t[rng.random(t.shape) < 0.02] = np.nan
    t[rng.random(t.shape) < 0.02] = np.inf
    t[rng.random(t.shape) < 0.02] = -1e35
    return X, t.astype(np.float32)


@pytest.mark.parametrize("number", range(len(SCALES) + 6))
def test_the_page_computes_what_the_deployed_program_computes_bit_by_bit(page, number):
    spec, scale = list(heads())[number]
    certificate = certify_rules(spec, scale=scale)
    program = program_of(certificate)
    data, _ = rules_head(certificate)
    X, t = points(spec, scale, np.random.default_rng(number))
    rows = json.dumps([[x, answer] for x, answer in zip(X.tolist(), t.tolist(), strict=True)])
    script = f"(() => {{ const head = makeHead({json.dumps(data)}); return {rows}.map(([x, t]) => {{"
    script += " const c = head.clipped(x, t), s = head.serve(x, t);"
    script += " return { y: c.y, ok: c.ok, bits: c.bits, safe: head.safe(c.x, c.bits), served: s.y, way: s.way,"
    script += " sure: s.sure }; }); })()"
    if not isinstance(program, Candidates):
        script = script.replace("head.safe(c.x, c.bits)", "[]")
    found = page.run(script)
    for start in range(0, len(X), 8):  # so few rows are computed one by one, in the order of the page
        own, part = found[start : start + 8], slice(start, start + 8)
        if not isinstance(program, Candidates):
            np.testing.assert_array_equal([row["y"] for row in own], program(X[part], t[part]))
            continue
        y, bad, bits = program._run(X[part], t[part])
        np.testing.assert_array_equal([row["y"] for row in own], y)
        assert [i for i, row in enumerate(own) if not row["ok"]] == list(bad)
        assert [own[i]["bits"] for i in bad] == [[bool(bit) for bit in row] for row in bits]
        clamped = np.clip(X[part], program.stored["domain.lower_float64"], program.stored["domain.upper_float64"])
        wanted = program._safe(clamped, np.array([row["bits"] for row in own]))
        np.testing.assert_array_equal([row["safe"] for row in own], wanted)
    served = np.array([row["served"] for row in found])
    assert not broken(spec, X, served).any()
    np.testing.assert_array_equal(served, served.astype(np.float32))
    allowed = np.isfinite(t).all(axis=1) & (np.abs(t) < 1e30).all(axis=1)
    allowed[allowed] &= ~broken(spec, X[allowed], t[allowed].astype(np.float64)).any(axis=1)
    assert all(row["way"] != "unknown" for row, ok in zip(found, allowed, strict=True) if ok)
    assert np.mean([row["way"] == "unknown" for row in found]) < 0.05
    # What the page calls served is what the program serves; of what it finds itself it says so.
    wanted = np.concatenate([program(X[i : i + 8], t[i : i + 8]) for i in range(0, len(X), 8)])
    sure = np.array([row["sure"] for row in found])
    np.testing.assert_array_equal(served[sure], wanted[sure])
    assert {row["way"] for row in found if row["sure"]} <= {"kept", "moved", "replaced"}


GRIDS = {
    "cents": """
inputs: {rate: {range: [0, 0.3], step: 0.01}, x: [0, 1]}
outputs: {net: {step: 0.01}, vat: {step: 0.01}, total: {step: 0.01}}
rules:
  - {name: range, then: 0 <= net <= 1000}
  - {name: tax, then: abs(vat - 0.19 * net) <= 0.005}
  - {name: total, then: total == net + vat}
  - {name: moving, then: net <= 500 + 100 * x}
""",
    "pieces": """
inputs: {demand: {range: [0, 220], integer: true}, x: [0, 1]}
outputs: {w1: {integer: true}, w2: {integer: true}, w3: {integer: true}}
rules:
  - {name: parts, then: w1 + w2 + w3 == demand}
  - {name: room, then: 0 <= w1 <= 100 and 0 <= w2 <= 80 and 0 <= w3 <= 60}
  - {name: holiday, when: x > 0.5 and demand <= 150, then: w3 <= 10}
""",
    "shares": "inputs: {x: [0, 1]}\noutputs: {a: {}, b: {}, c: {}, d: {}}\nrules:\n"
    "  - {name: one, then: a + b + c + d == 1}\n"
    "  - {name: caps, then: 0 <= a <= 0.5 and b >= 0 and c >= 0 and d >= 0.1}\n",
    "alternatives": """
inputs: {x: [0, 10]}
outputs: {limit: {step: 100, range: [0, 5000]}, fee: {step: 0.25, range: [0, 50]}}
rules:
  - {name: fee, then: limit <= 2000 or fee >= 10}
  - {name: moving, then: fee <= 5 + 3 * x or limit <= 1000}
""",
}  # fmt: skip


@pytest.mark.parametrize("name", GRIDS)
def test_the_page_serves_steps_as_the_deployed_program_does(page, name):
    spec = Specification.from_yaml(GRIDS[name])
    program = program_of(certify_head(spec))
    rng = np.random.default_rng(3)
    X = np.concatenate(list(hard_points(spec, rng, 200, dtype=np.float64)))[:200]
    reach = np.array([float(max(abs(a), abs(b))) for a, b in zip(spec.grid.lower, spec.grid.upper, strict=True)])
    t = (rng.uniform(-0.2, 1.2, (len(X), len(reach))) * reach).astype(np.float32)
    t[::7] = program(X[::7], t[::7])
    t[rng.random(t.shape) < 0.02] = np.nan
    t[rng.random(t.shape) < 0.02] = np.inf
    data, _ = grid_head(program)
    rows = json.dumps([[x, answer] for x, answer in zip(X.tolist(), t.tolist(), strict=True)])
    script = f"(() => {{ const head = makeGridHead({json.dumps(data)}); return {rows}.map(([x, t]) => {{"
    script += " const s = head.serve(x, t), r = head.read(x);"
    script += " return { y: s.y, way: s.way, sure: s.sure, on: s.on, safe: head.safe(r, head.bitsOf(r)) }; }); })()"
    found = page.run(script)
    wanted, by = program.explained(X, t)
    served = np.array([row["y"] for row in found])
    np.testing.assert_array_equal([row["sure"] for row in found], by == 0)
    np.testing.assert_array_equal(served[by == 0], wanted[by == 0])
    read = program.read(X)
    bits = program.bits(read, X.dtype)
    np.testing.assert_array_equal(np.array([row["on"] for row in found], dtype=bool).reshape(bits.shape), bits)
    np.testing.assert_array_equal([row["safe"] for row in found], program.safe(read, bits, len(X)))
    k = np.rint(served * program.denominator / program.numerator)
    assert program.passes(k, program.right(read), bits).all()
    np.testing.assert_array_equal(served, program.values(k))
    assert not any(row["way"] == "unknown" for row in found)
    finite, scale = np.isfinite(t).all(axis=1), program.stored["check.scale"]
    far = [(((y - t)[finite] / scale) ** 2).sum(axis=1) for y in (served, wanted)]
    assert np.mean(far[0] <= far[1] * (1 + 1e-3) + 1e-6) > 0.97


def test_a_reader_moves_in_steps(browser, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"demand": rng.integers(0, 220, 200), "x": rng.uniform(0, 1, 200)})
    targets = np.stack([table["demand"] * share for share in (0.5, 0.3, 0.2)], axis=1)
    model = SafeRegressor(Specification.from_yaml(GRIDS["pieces"]), estimator=Ridge()).fit(table, targets)
    write_report(model, path=tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert browser.errors == []

    enter = partial(entered, browser)
    assert browser.run("document.getElementById('input-0').step") == "1"
    assert browser.run("document.getElementById('answer-0').step") == "1"
    enter("input-1", 0.2)
    enter("input-0", 100)
    for i, value in enumerate((50.2, 29.9, 20.3)):
        text = enter(f"answer-{i}", value)
    assert "rounded to whole steps, which the rules allow" in text
    text = enter("answer-0", 60)
    assert "moved: the check refuses it (parts)" in text
    (wanted,) = model.deployed_.head(np.array([[100, 0.2]]), np.array([[60, 29.9, 20.3]]))
    assert f"found: w1\n{wanted[0]:.0f}\n" in text
    assert browser.errors == []


def test_nearest_answers_of_the_page_are_those_of_the_deployed_program(page):
    spec = Specification.from_yaml(BANK)
    scale = np.array([20000.0, 5.0])
    certificate = certify_rules(spec, scale=scale)
    rng = np.random.default_rng(0)
    X = np.stack([rng.uniform(0, 2e5, 200), rng.integers(0, 6, 200)], axis=1)
    t = (np.array([20000, 13]) + rng.normal(0, 1, (200, 2)) * scale).astype(np.float32)
    data, _ = rules_head(certificate)
    script = f"(() => {{ const head = makeHead({json.dumps(data)}), X = {json.dumps(X.tolist())};"
    script += f" return {json.dumps(t.tolist())}.map((t, i) => head.serve(X[i], t).y); }})()"
    served = program_of(certificate)(X, t)
    assert (served != t).any(axis=1).sum() > 100
    np.testing.assert_allclose(np.array(page.run(script)) / scale, served / scale, atol=1e-4)


def test_where_the_page_finds_nothing_it_does_not_call_the_safe_answer_served(page):
    """More parts than the page tries: the program serves a near answer where the page knows none."""
    rng = np.random.default_rng(0)
    rules = ""
    for i in range(40):
        first, *others = rng.choice(16, 4, replace=False)
        rules += f"  - {{name: r{i}, then: not l{first} or {' or '.join(f'l{k}' for k in others)}}}\n"
    spec = Specification.from_yaml(
        f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(f'l{i}' for i in range(16))}]\nrules:\n{rules}"
    )
    certificate = certify_rules(spec)
    X, t = np.zeros((200, 1)), rng.normal(0, 1, (200, 16)).astype(np.float32)
    _, by = program_of(certificate).explained(X, t)
    data, _ = rules_head(certificate)
    script = f"(() => {{ const head = makeHead({json.dumps(data)});"
    script += f" return {json.dumps(t.tolist())}.map((t) => {{ const s = head.serve([0], t);"
    found = page.run(script + " return [s.y, s.way, s.sure]; }); })()")
    unknown = np.array([way == "unknown" for _, way, _ in found])
    assert (unknown & (by != 2)).any()
    assert not any(way == "safe" for _, way, _ in found)
    assert not any(sure for (*_, sure), own in zip(found, by, strict=True) if own)


def test_a_reader_enters_answers_and_sees_what_is_served(browser, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": rng.uniform(0, 200000, 300), "arrears": rng.integers(0, 6, 300)})
    targets = np.stack([0.3 * table["income"], 8 + table["arrears"]], axis=1)
    model = SafeRegressor(Specification.from_yaml(BANK), estimator=Ridge()).fit(table, targets)
    write_report(model, path=tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert browser.errors == []

    enter = partial(entered, browser)
    enter("input-0", 100000)
    enter("input-1", 0)
    enter("answer-1", 10)
    assert "kept: the rules allow the answer" in enter("answer-0", 20000)
    text = enter("answer-0", 50000)
    assert "moved onto limits" in text
    assert "35,000" in text
    assert "0 to 35,000" in text
    text = enter("answer-1", 12.5)
    assert "moved: the check refuses it (two lists)" in text
    assert "found: rate" in text or "found: card" in text
    assert "The model searches more widely" in text
    assert "replaced: NaN" in enter("answer-0", "")
    enter("answer-0", 1000)
    text = enter("output", 1)
    assert "between 12 and 14" in text
    assert browser.run("document.querySelectorAll('#chart path.own').length") == 1
    enter("up", 1)  # a map
    assert browser.run("document.querySelectorAll('#chart canvas').length") == 1
    assert browser.errors == []
    for width in (1280, 400):
        browser.open(tmp_path / "report.html", width=width)
        assert browser.run("document.documentElement.scrollWidth") <= width


MISSING = """
inputs: {income: [0, 100000], score: {range: [300, 850], missing: 500}}
outputs: [limit]
rules:
  - {name: unscored, when: score is missing, then: limit <= 1000}
  - {name: good, when: score >= 700, then: limit >= 2000}
"""


def test_a_reader_says_that_a_value_is_missing(browser, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": rng.uniform(0, 1e5, 200), "score": rng.uniform(300, 850, 200)})
    inside = make_pipeline(SimpleImputer(), Ridge())
    model = SafeRegressor(Specification.from_yaml(MISSING), inside).fit(table, 0.1 * table["income"])
    write_report(model, path=tmp_path / "report.html")
    browser.open(tmp_path / "report.html")

    enter = partial(entered, browser)
    enter("input-1", 800)
    assert "2000" in enter("answer-0", 500)  # a good score
    text = enter("input-2", 1)  # it is missing, wherever the slider of the score stands
    assert "unscored" in text
    assert "good" not in text
    assert "1000" in enter("answer-0", 5000)
    assert browser.run("document.querySelectorAll('#sliders output')[2].textContent") == "missing"
    assert browser.errors == []


def test_a_network_in_front_of_the_head_runs_in_the_page(browser, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": rng.uniform(0, 200000, 200), "arrears": rng.integers(0, 6, 200)})
    targets = np.stack([0.3 * table["income"], 8 + table["arrears"]], axis=1)
    options = {"hidden_layer_sizes": (8,), "max_epochs": 3, "random_state": 0, "verbose": False}
    model = SafeRegressor(Specification.from_yaml(BANK), NetworkRegressor(**options), compare=False).fit(table, targets)
    write_report(model, path=tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert browser.errors == []
    X = table[:60].to_numpy(dtype=np.float64)
    found = browser.run(
        f"{json.dumps(X.tolist())}.map((x) => {{ const a = smleReport.predict(x); return [a.own, a.y]; }})"
    )
    wanted = model.answer(table[:60], count=False)
    scale = np.array([20000.0, 5.0])
    own, served = (np.array([row[i] for row in found]) / scale for i in (0, 1))
    np.testing.assert_allclose(own, wanted.answers / scale, atol=1e-4)
    assert browser.run("document.getElementById('answers')") is None
    np.testing.assert_allclose(served, wanted.served / scale, atol=1e-3)


def test_of_a_large_network_readers_enter_the_answers(tmp_path):
    X = np.random.default_rng(0).uniform(0, 1, (50, 1))
    rules = "inputs: {a: [0, 1]}\noutputs: [y]\nrules: [{name: limit, then: y <= 1}]"
    options = {"hidden_layer_sizes": (400, 400), "max_epochs": 1, "random_state": 0, "verbose": False}
    model = SafeRegressor(rules, NetworkRegressor(**options), compare=False).fit(X, X[:, 0])
    write_report(model, path=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert 'id="answers"' in page
    assert len(page) < 300_000


def test_thousands_of_exclusions_and_a_hundred_inputs_stay_small(browser, tmp_path):
    count, width = 70, 110
    names = ", ".join(f"tag_{i:03d}" for i in range(count))
    ranges = "\n".join(f"  sensor_{i:03d}: [-1, 1]" for i in range(width))
    text = f"inputs:\n{ranges}\nlabels: [{names}]\nrules:\n  - name: one tag\n    then: at_most_one({names})\n"
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (60, width)), np.eye(count, dtype=int)[rng.integers(0, count, 60)]
    options = {"hidden_layer_sizes": (8,), "max_epochs": 1, "random_state": 0, "verbose": False}
    model = SafeClassifier(Specification.from_yaml(text), NetworkClassifier(**options), compare=False).fit(X, y)
    write_report(model, path=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 1_000_000
    for said in ("2,415 pairs of 70 labels in all that never occur together", "(shortened)", "110 inputs"):
        assert said in page
    browser.open(tmp_path / "report.html")
    assert browser.errors == []
    served = browser.run("smleReport.explorer.head.serve(Array(110).fill(0), Array(70).fill(1)).y")
    assert sum(value >= 0 for value in served) == 1
