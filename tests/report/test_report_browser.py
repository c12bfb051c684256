"""The page in a real browser: it opens without an error, answers to people, and computes what is served."""

import json
import re
from importlib import resources
from itertools import pairwise

import numpy as np
import pytest

from smle import SMLEClassifier, SMLERegressor
from smle.report import write_report
from smle.rules.membership import active
from support.report_rules import HOSTILE
from support.safe_networks import AtTheEnd

KINDS = ["braking", "labels", "choice", "dose", "plain", "poor", "rejected"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory, braking_model, braking_table, labels, choice, dose, plain, poor):
    """One page of each kind, with the model behind it."""
    place = tmp_path_factory.mktemp("pages")
    cases = {
        "braking": (braking_model, braking_table),
        "labels": labels,
        "choice": choice,
        "dose": dose,
        "plain": plain,
        "poor": (poor[0], None),
    }
    result = {}
    for kind, (model, table) in cases.items():
        write_report(model, table, place / f"{kind}.html")
        result[kind] = (place / f"{kind}.html", model)
    folder = place / "model"
    braking_model.save(folder)
    (folder / "model.json").write_text("{}")
    write_report(folder, path=place / "rejected.html")
    result["rejected"] = (place / "rejected.html", None)
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1280, 400])
def test_opens_without_errors_and_fits_the_window(browser, pages, kind, width):
    path, _ = pages[kind]
    browser.open(path, width=width, dark=width == 400)
    assert browser.errors == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("getComputedStyle(document.body).fontSize") == "16px"  # the style sheet passed the policy
    assert browser.run("document.querySelector('h1').textContent.length") > 0


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 700)])
def test_the_first_screen_shows_proof_and_accuracy(browser, pages, width, height):
    path, model = pages["poor"]
    browser.open(path, width=width, height=height)
    said = browser.run("document.querySelector('.verdict .say').innerText")
    assert said.startswith("PROVED")
    shown = browser.run("document.querySelector('.verdict .accuracy').innerText")
    assert shown.startswith("POOR ACCURACY")
    score = model.description_["scores"]["score"]
    for name in ("safe", "plain", "postprocess"):
        assert f"{score[name]:.3f}" in shown
    boxes = browser.run(
        "['.say .word', '.accuracy', '.concern'].map(s => document.querySelector('.verdict ' + s))"
        ".map(e => e.getBoundingClientRect()).map(({left, right, top, bottom}) => [left, right, top, bottom])"
    )
    proved, accuracy, concern = boxes
    assert max(proved[3], accuracy[3], concern[2] + 60) <= height
    if width > 1000:
        assert proved[1] <= accuracy[0]  # side by side
        assert abs(proved[2] - accuracy[2]) < 40
    assert browser.run("document.querySelector('.concern').innerText") == model.description_["scores"][
        "concern"
    ].replace("R2", "R²")
    bad = browser.run("getComputedStyle(document.querySelector('.concern')).borderTopColor")
    assert bad == browser.run("getComputedStyle(document.querySelector('.accuracy .word')).color")
    assert browser.errors == []


@pytest.mark.parametrize("kind", ["braking", "labels", "choice", "dose", "plain"])
def test_the_page_computes_what_is_served(browser, pages, kind):
    path, model = pages[kind]
    X = _random_inputs(model.specification_, 300)
    served = model.deployed_
    expected = served.answer(served.reader.opened(X, X), "clip", count=False).served.astype(np.float64)
    cells = served.head.cell_of(X) if not served.reads_answers else np.zeros(len(X))
    browser.open(path)
    script = f"{json.dumps(X.tolist())}.map(x => {{ const a = smleReport.predict(x); return [a.cell, ...a.y]; }})"
    found = np.array(browser.run(script))
    assert found[:, 0].tolist() == cells.tolist()
    scale = np.abs(expected).max(axis=0)
    assert (np.abs(found[:, 1:] - expected) <= 1e-4 * np.maximum(np.abs(expected), 0.1 * scale)).all()


@pytest.mark.parametrize("gate", [True, False])
def test_active_rules_are_those_of_the_point(browser, tmp_path, choice, gate):
    model, table = choice
    spec = model.specification_
    if not gate:
        quick = {"hidden_layer_sizes": (6,), "embedding": 4, "max_epochs": 1, "random_state": 0, "compare": False}
        model = SMLEClassifier(spec, gate=False, **quick, enforcement=AtTheEnd())
        model.fit(table, table["advice"])
    write_report(model, path=tmp_path / "page.html")
    X = _random_inputs(spec, 100)
    on = np.stack([active(rule, X) for rule in spec.rules], axis=1)
    assert on.any(axis=0).all()
    browser.open(tmp_path / "page.html")
    found = browser.run(f"{json.dumps(X.tolist())}.map(x => smleReport.explorer.at(x).rules)")
    assert found == [np.flatnonzero(row).tolist() for row in on]


def test_network_bounds_too(browser, tmp_path, dose):
    model, table = dose
    other = SMLERegressor(
        model.specification_,
        random_state=0,
        compare=False,
        bounds="network",
        hidden_layer_sizes=(6,),
        embedding=4,
        max_epochs=2,
        refit_heads=False,
        enforcement=AtTheEnd(),
    ).fit(table, table[["dose", "second"]])
    write_report(other, table, tmp_path / "page.html")
    X = _random_inputs(other.specification_, 100)
    expected = other.deployed_.answer(other.deployed_.reader.opened(X, X), "clip", count=False).served
    browser.open(tmp_path / "page.html")
    assert browser.errors == []
    found = np.array(browser.run(f"{json.dumps(X.tolist())}.map(x => [...smleReport.predict(x).y])"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def _random_inputs(spec, count):
    rng = np.random.default_rng(5)
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    X = rng.uniform(low, high, (count, len(low)))
    for group in spec.one_hot:
        X[:, list(group)] = np.eye(len(group))[rng.integers(0, len(group), count)]
    return X


def test_the_explorer_answers(browser, pages):
    path, model = pages["braking"]
    browser.open(path)
    readout = "document.getElementById('readout').textContent"

    def move(name, value):
        number = [item.name for item in model.specification_.inputs].index(name)
        browser.run(
            f"(() => {{ const f = document.getElementById('input-{number}'); f.value = {value};"
            "f.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        browser.settle()

    for name, value in (("distance", 5), ("speed", 30), ("friction", 0.5)):
        move(name, value)
    near = browser.run(readout)
    assert "emergency braking" in near
    assert "allowed here0.8 to 1" in near
    assert f"{model.predict(np.array([[5.0, 30.0, 0.5]]))[0]:.3f}"[:4] in near
    move("distance", 190)
    far = browser.run(readout)
    assert "emergency braking" not in far
    assert "allowed here0 to 1" in far
    assert browser.errors == []


def test_keyboard_pointer_and_second_input(browser, pages):
    path, _ = pages["braking"]
    browser.open(path)
    value = "Number(document.getElementById('input-0').value)"
    before = browser.run(value)
    browser.run("document.getElementById('input-0').focus()")
    browser.key("ArrowRight", 39)
    assert browser.run(value) > before
    browser.run("document.getElementById('chart').scrollIntoView({block: 'center', behavior: 'instant'})")
    box = browser.run("(({left, top}) => [left, top])(document.getElementById('chart').getBoundingClientRect())")
    area = browser.run("(({left, top, width, height}) => [left, top, width, height])(smleReport.explorer.area)")
    spot = {"x": box[0] + area[0] + area[2] / 2, "y": box[1] + area[1] + area[3] / 4, "button": "left"}
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, clickCount=1, **spot)
    browser.settle()
    assert browser.run(value) == pytest.approx(100, abs=2)
    browser.run("(f => { f.value = '1'; f.dispatchEvent(new Event('change')); })(document.getElementById('up'))")
    assert browser.run("document.querySelectorAll('#chart canvas').length") == 1
    assert browser.run("document.querySelectorAll('#chart .border').length") > 0
    assert browser.errors == []


@pytest.mark.parametrize("kind", ["choice", "labels"])
def test_every_pair_of_inputs_and_every_output_can_be_drawn(browser, pages, kind):
    path, _ = pages[kind]
    browser.open(path, width=400)
    drawn = browser.run("""(() => {
      let count = 0;
      const change = (id, v) => {
        const field = document.getElementById(id);
        field.value = v;
        field.dispatchEvent(new Event("change"));
      };
      const values = (id) => [...document.getElementById(id).options].map(o => o.value);
      for (const o of values("output")) {
        change("output", o);
        for (const a of values("across")) {
          change("across", a);
          for (const b of values("up")) {
            change("up", b);
            count += document.querySelectorAll("#chart svg").length > 0;
          }
        }
      }
      return count;
    })()""")
    assert drawn >= 12
    assert browser.errors == []


def test_hostile_names_are_shown_as_text(browser, pages):
    path, _ = pages["labels"]
    browser.open(path)
    assert browser.run("document.querySelector('.rule h3').textContent") == HOSTILE
    assert browser.run("document.scripts.length") == 2
    assert HOSTILE in browser.run("document.getElementById('readout').textContent")
    assert browser.errors == []


def test_theme_switch_and_print(browser, pages):
    path, _ = pages["braking"]
    browser.open(path)
    color = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(color)
    browser.run("document.getElementById('theme').click()")
    assert browser.run(color) != light
    browser.run("document.getElementById('theme').click()")
    assert browser.run(color) == light
    browser.open(path, dark=True)
    assert browser.run(color) != light
    assert browser.pdf().startswith(b"%PDF")
    assert browser.errors == []


@pytest.mark.parametrize("kind", ["braking", "choice", "rejected"])
def test_names_for_those_who_do_not_see(browser, pages, kind):
    path, _ = pages[kind]
    browser.open(path)
    nameless = browser.run("""[
      ...[...document.querySelectorAll("svg")].filter(s => !s.closest("[aria-hidden], [aria-label]")),
      ...[...document.querySelectorAll("input, select")].filter(f => !f.labels.length),
      ...[...document.querySelectorAll("button")].filter(b => !b.textContent.trim() && !b.getAttribute("aria-label")),
    ].map(e => e.outerHTML.slice(0, 120))""")
    assert nameless == []
    levels = browser.run("[...document.querySelectorAll('h1,h2,h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    repeated = browser.run(
        "(ids => ids.filter((v, i) => ids.indexOf(v) !== i))([...document.querySelectorAll('[id]')].map(e => e.id))"
    )
    assert repeated == []


def _luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_has_enough_contrast_in_both_themes():
    style = resources.files("smle.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
    for block in re.findall(r"color-scheme: (?:light|dark);(.*?)\}", style, flags=re.S)[:3]:
        color = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        pairs = [(text, ground) for text in ("ink", "muted", "accent", "bad") for ground in ("paper", "panel")]
        for text, ground in [*pairs, ("ink", "bad-soft"), ("bad", "bad-soft"), ("muted", "bad-soft")]:
            light, dark = sorted((_luminance(color[text]), _luminance(color[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
