"""Messages for the mistakes that people make, kept in error_messages.txt so that they can be read in one go.

After a wanted change: SMLE_SNAPSHOT=write pytest tests/rules/test_error_messages.py, then read the diff.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from smle.errors import RuleError
from smle.rules import Specification, linear_rule, mutually_exclusive, rule, score, variables

SNAPSHOT = Path(__file__).with_name("error_messages.txt")
HEAD = """inputs:
  distance: [0, 200]
  speed: [0, 40]
  lanes: {range: [1, 8], integer: true}
  road: {categories: [dry, wet, icy]}
outputs: [brake, steer]
labels: [cat, dog, animal]
choices: {advice: [clear, left, right], lane: [left, middle]}
constants: {near: 10}
rules:
"""


def of_rule(then, when=None):
    """A mistake in one rule of an otherwise fine file."""
    lines = [f"  - name: {'emergency braking'}"]
    if when is not None:
        lines.append(f'    when: "{when}"')
    return HEAD + "\n".join([*lines, f'    then: "{then}"']) + "\n"


def of_file(**parts):
    """A file made of the parts given, with sound ones for the rest."""
    stated = {"inputs": "{speed: [0, 40]}", "outputs": "[brake]", "rules": "[{name: r, then: brake <= 1}]"} | parts
    return "\n".join(f"{key}: {value}" for key, value in stated.items() if value is not None) + "\n"


RULES = {
    "unknown name": of_rule("brake >= 0.8", "distanc <= 10"),
    "unknown name, nothing near": of_rule("brake >= 0.8", "qwertyuiop <= 10"),
    "unknown category": of_rule("brake >= 0.8", "road == ice"),
    "category without its input": of_rule("brake >= 0.8", "icy"),
    "unknown option": of_rule("advice == lift"),
    "unknown function": of_rule("foo(brake, steer) <= 1"),
    "function of Python": of_rule("maximum(brake, steer) <= 1"),
    "product of variables": of_rule("brake >= distance * speed"),
    "product of outputs": of_rule("brake * steer >= 1"),
    "division by a variable": of_rule("1 / brake >= 1"),
    "division by zero": of_rule("brake / (near - 10) >= 1"),
    "power": of_rule("brake ** 2 <= 1"),
    "single equals sign": of_rule("brake >= 0.8", "distance = 10"),
    "C-style and": of_rule("brake >= 0.8", "distance <= 10 && speed >= 20"),
    "capital AND": of_rule("brake >= 0.8", "distance <= 10 AND speed >= 20"),
    "unit after a number": of_rule("brake >= 0.8", "distance <= 10 m"),
    "name with a space": of_rule("brake >= 0.8", "road friction <= 0.3"),
    "turned comparison": of_rule("brake => 0.8"),
    "grouped digits": of_rule("brake >= 0.8", "distance <= 1_00"),
    "commas in a number": of_rule("brake >= 0.8", "distance <= 10,000"),
    "commas in numbers of a list": of_rule("brake >= 0.8", "distance in [10,000, 20,000]"),
    "decimal comma": of_rule("brake >= 0,8"),
    "spaces in a number": of_rule("brake >= 0.8", "distance <= 10 000"),
    "points in a number": of_rule("brake >= 0.8", "distance <= 1.000.000"),
    "currency": of_rule("brake >= 0.8", "distance <= €10"),
    "minus sign of a text program": of_rule("brake >= 0.8 \u2212 0.1"),
    "remainder": of_rule("brake >= 0.8", "lanes % 2 == 0"),
    "remainder of a number": of_rule("brake >= 10 % 3"),
    "percent of": of_rule("brake <= 10 % of speed"),
    "percent added": of_rule("brake <= speed + 10 %"),
    "division by what may be 0": of_rule("brake >= 0.8", "distance / speed <= 2"),
    "division by a difference": of_rule("brake >= 0.8", "distance / (speed - lanes) <= 2"),
    "division by two things": of_rule("brake / lanes <= steer / (lanes + 1)"),
    "quotient beside a variable": of_rule("brake / lanes <= steer"),
    "divided twice": of_rule("brake / lanes / lanes <= 1"),
    "division by cases": of_rule("brake / abs(lanes) <= 1"),
    "quotient as a condition": of_rule("brake / lanes"),
    "range or two values": of_rule("brake >= 0.8", "lanes in [2, 5]"),
    "range or two values of an output": of_rule("brake in [0, 1]"),
    "range with dots": of_rule("brake >= 0.8", "lanes in [2..5]"),
    "list in parentheses": of_rule("brake >= 0.8", "lanes in (2, 3)"),
    "list that no float holds": of_rule("brake in [0, 0.7, 1]"),
    "list of an output and an input": of_rule("brake in [0, speed, 1]"),
    "label in a list": of_rule("cat in [0, 1]"),
    "xor": of_rule("cat xor dog"),
    "xor inside": of_rule("(cat xor dog) and animal"),
    "xor as a function": of_rule("xor(cat, dog)"),
    "iff": of_rule("cat iff animal"),
    "iff as a function": of_rule("iff(cat, animal)"),
    "unless": of_rule("brake >= 0.8 unless distance > 10"),
    "between": of_rule("brake between 0.3 and 0.5"),
    "is between": of_rule("brake >= 0.8", "distance is between 3 and near and speed > 2"),
    "between as a function": of_rule("between(brake, 3, 5)"),
    "logarithm": of_rule("brake <= log(speed)"),
    "sine": of_rule("brake <= sin(speed)"),
    "monotone": of_rule("monotone(brake, speed)"),
    "function in capitals": of_rule("MAX(brake, steer) <= 1"),
    "sum as a function": of_rule("sum(brake, steer) <= 1"),
    "misspelled function": of_rule("atmost_one(cat, dog)"),
    "is missing": of_rule("brake >= 0.8", "speed is missing"),
    "is not null": of_rule("brake >= 0.8", "speed is not null"),
    "compared with missing": of_rule("brake >= 0.8", "speed == missing"),
    "missing as a function": of_rule("brake >= 0.8", "isnull(speed)"),
    "sum is missing": of_rule("brake >= 0.8", "speed + 1 is known"),
    "output is missing": of_rule("brake is missing implies brake >= 0.8"),
    "is": of_rule("brake >= 0.8", "road is icy"),
    "is not": of_rule("brake >= 0.8", "road is not icy"),
    "at least": of_rule("brake >= 0.8", "speed is at least 3"),
    "greater than": of_rule("brake >= 0.8", "speed greater than 3"),
    "if and then in one text": of_rule("if distance < 18 then brake >= 0.8"),
    "when behind": of_rule("brake >= 0.8 when distance < 18"),
    "text that ends too early": of_rule("brake >= 0.8", "distance <= 10 and"),
    "missing parenthesis": of_rule("(brake >= 0.8 and steer <= 1"),
    "unclosed quote": of_rule("brake >= 0.8", "road == 'icy"),
    "strange character": of_rule("brake >= 0.8 $"),
    "equality of outputs": of_rule("brake == steer"),
    "equality with a number": of_rule("brake == 0.3 or steer <= 1"),
    "hidden equality": of_rule("brake <= steer and steer <= brake"),
    "hidden equality in abs": of_rule("abs(brake - 0.3) <= 0"),
    "output in when": of_rule("brake >= 0.8", "brake <= 0.5"),
    "label in when": of_rule("brake >= 0.8", "cat"),
    "choice in when": of_rule("brake >= 0.8", "advice == left"),
    "score in when": of_rule("brake >= 0.8", "score(right) >= 0"),
    "number as a condition": of_rule("brake"),
    "label as a number": of_rule("cat + dog <= 1"),
    "label compared": of_rule("cat == 1"),
    "choice as a number": of_rule("advice >= 2"),
    "choice alone": of_rule("advice"),
    "category as a number": of_rule("brake >= 0.8", "2 * road <= 1"),
    "condition as a number": of_rule("(brake <= 1) + 1 <= 2"),
    "if and only if": of_rule("(brake <= 1) == (steer <= 1)"),
    "logit of a number": of_rule("logit(brake) >= 0"),
    "ambiguous option": of_rule("score(left) >= 0"),
    "score of a label": of_rule("score(cat) >= 0"),
    "in without a list": of_rule("brake >= 0.8", "road in icy"),
    "in with options": of_rule("brake in [left, right]"),
    "largest of one": of_rule("max(brake) <= 2"),
    "two absolute values in one": of_rule("abs(brake, steer) <= 2"),
    "product of extremes": of_rule("max(brake, 1) * min(steer, 1) <= 2"),
    "largest as a condition": of_rule("max(brake, steer)"),
    "equality of the largest": of_rule("max(brake, steer) == 1"),
    "one label at most": of_rule("at_most_one(cat)"),
    "count without a number": of_rule("at_most(cat, dog)"),
    "count below zero": of_rule("at_least(-1, cat, dog)"),
    "count of all": of_rule("at_most(2, cat, dog)"),
    "count of more than there are": of_rule("exactly(3, cat, dog)"),
    "too many groups": of_rule(f"at_most(9, {', '.join(f'brake >= {i}' for i in range(20))})"),
    "always true": of_rule("brake <= brake + 1"),
    "never true": of_rule("brake <= brake - 1"),
    "region that is never true": of_rule("brake >= 0.8", "distance < distance"),
    "inputs only": of_rule("speed <= 30"),
    "inputs in one part": of_rule("brake <= 1 and (speed <= 3 or steer <= 1)"),
    "too many cases": of_rule(" or ".join(f"(brake <= {i} and steer <= {i} and logit(cat) <= {i})" for i in range(12))),
    "too many regions": of_rule("brake >= 0", " and ".join(f"(speed != {i} or distance != {i})" for i in range(12))),
    "too many absolute values": of_rule(" + ".join(["abs(brake)"] * 11) + " <= 1"),
    "extremes nested too deeply": of_rule("max(brake, abs(" * 12 + "steer" + "))" * 12 + " <= 1"),
    "nested too deeply": of_rule("(" * 200 + "brake" + ")" * 200 + " <= 1"),
    "number too large": of_rule("brake <= 1e1000000000"),
    "empty when": of_rule("brake <= 1", " "),
}

FILES = {
    "then is a list": HEAD + "  - name: r\n    then: [brake <= 1, steer <= 1]\n",
    "then is a list of names": HEAD + "  - name: r\n    then: [cat, dog]\n",
    "comma in a range": of_file(inputs="{speed: [0, 10,000]}"),
    "comma in braces": HEAD + "  - {name: r, then: max(brake, steer) <= 1}\n",
    "empty file": "\n",
    "not YAML": "inputs: [0, 1\nrules:\n",
    "text with a colon": HEAD + "  - name: r\n    then: brake: 1\n",
    "tab": "inputs:\n\tspeed: [0, 40]\n",
    "no inputs": of_file(inputs=None),
    "no outputs": of_file(outputs=None),
    "unknown part": of_file(output="[brake]"),
    "key twice": of_file(inputs="{speed: [0, 1], speed: [0, 2]}"),
    "alias": of_file(inputs="{speed: &a [0, 1], x: *a}"),
    "tag": of_file(inputs="{speed: !!python/tuple [0, 1]}"),
    "two documents": of_file() + "---\n" + of_file(),
    "range reversed": of_file(inputs="{speed: [40, 0]}"),
    "range empty": of_file(inputs="{speed: [40, 40]}"),
    "range infinite": of_file(inputs="{speed: [0, .inf]}"),
    "range not a number": of_file(inputs="{speed: [0, nan]}"),
    "range of words": of_file(inputs="{speed: [slow, fast]}"),
    "range of three": of_file(inputs="{speed: [0, 20, 40]}"),
    "no range": of_file(inputs="{speed: 40}"),
    "unknown key of an input": of_file(inputs="{speed: {ranges: [0, 40]}}"),
    "integer range with decimals": of_file(inputs="{speed: {range: [0.5, 3], integer: true}}"),
    "missing value outside": of_file(inputs="{speed: {range: [0, 40], missing: 50}}"),
    "missing category": of_file(inputs="{speed: [0, 1], road: {categories: [dry, wet], missing: wett}}"),
    "one category": of_file(inputs="{speed: [0, 1], road: {categories: [dry]}}"),
    "name used twice": of_file(outputs="[brake, speed]"),
    "constant with the name of an input": of_file(constants="{speed: 3}"),
    "constant with the name of a category": of_file(
        inputs="{speed: [0, 1], road: {categories: [near, far]}}", constants="{near: 3}"
    ),
    "constant with the name of an option": of_file(choices="{advice: [near, far]}", constants="{near: 3}"),
    "constant that is no number": of_file(constants="{near: close}"),
    "pick": of_file(choices="{advice: {options: [a, b], pick: best}}"),
    "one option": of_file(choices="{advice: [left]}"),
    "rules as text": of_file(rules="brake <= 1"),
    "rule without name": of_file(rules="[{then: brake <= 1}]"),
    "rule without then": of_file(rules="[{name: r, when: speed <= 1}]"),
    "unknown key of a rule": of_file(rules="[{name: r, if: speed <= 1, then: brake <= 1}]"),
    "two rules with one name": of_file(rules="[{name: r, then: brake <= 1}, {name: r, then: brake >= 0}]"),
    "unknown label in a pair": of_file(labels="[cat, dog]", rules="[{name: r, never_together: [[cat, dgo]]}]"),
    "pair of three": of_file(labels="[cat, dog]", rules="[{name: r, never_together: [[cat, dog, cat]]}]"),
    "label with itself": of_file(labels="[cat, dog]", rules="[{name: r, never_together: [[cat, cat]]}]"),
    "pairs from elsewhere": of_file(labels="[cat, dog]", rules="[{name: r, never_together: ../pairs.npy}]"),
    "no such file": "no_such_file.yaml",
}

VNNLIB = {
    "VNN-LIB 2.0": "(vnnlib-version <2.0>)\n",
    "unknown variable": "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (<= Z_0 1))\n",
    "unknown operator": "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (relu Y_0))\n",
    "not linear": "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (<= (* X_0 Y_0) 1))\n",
    "no bound": "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (<= Y_0 1))\n",
    "no output": "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (<= X_0 1))\n",
    "unclosed": "(declare-const X_0 Real)\n(assert (<= X_0 1)\n",
    "gap": "(declare-const X_0 Real)\n(declare-const Y_1 Real)\n(assert (<= X_0 1))\n",
}


def python_mistakes():
    x, y = variables("x y")
    build = Specification.build
    return {
        "truth value of a condition": lambda: build(inputs={"x": (0, 1)}, outputs=["y"], rules={"r": 0 <= y <= 1}),
        "not a number": lambda: x <= float("nan"),
        "rule without then": lambda: rule("r", when=x <= 1),
        "not a rule": lambda: build(inputs={"x": (0, 1)}, outputs=["y"], rules=["y <= 1"]),
        "score without an option": lambda: build(
            inputs={"x": (0, 1)}, choices={"advice": ["a", "b"]}, rules={"r": score("c") <= 1}
        ),
        "matrix of the wrong shape": lambda: linear_rule(
            None, None, np.eye(3), np.ones(3), inputs=["x"], outputs=["y"]
        ),
        "label number too large": lambda: build(
            inputs={"x": (0, 1)}, labels=["a", "b"], rules=[rule("r", then=mutually_exclusive(np.array([[0, 2]])))]
        ),
    }


def message(action, *arguments):
    with pytest.raises(RuleError) as caught:
        action(*arguments)
    return str(caught.value)


def all_messages():
    yield from (("rule: " + kind, message(Specification.from_yaml, text)) for kind, text in RULES.items())
    yield from (("file: " + kind, message(Specification.from_yaml, text)) for kind, text in FILES.items())
    yield from (("VNN-LIB: " + kind, message(Specification.from_vnnlib, text)) for kind, text in VNNLIB.items())
    yield from (("Python: " + kind, message(action)) for kind, action in python_mistakes().items())


def test_messages_read_well_and_stay_as_they_are():
    text = "".join(f"{kind}\n    {message}\n" for kind, message in all_messages())
    if os.environ.get("SMLE_SNAPSHOT") == "write":
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8")


def test_there_are_enough_kinds_and_no_two_messages_are_the_same():
    messages = [text for _, text in all_messages()]
    assert len(messages) >= 25
    assert len(set(messages)) == len(messages)
    assert all(text[-1] in ".?" and "Traceback" not in text and len(text) < 400 for text in messages)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{inputs: {a: [0, 1]}, outputs: [brake, brake\u3164], rules: []}\n",
            "The names 'brake' (an output) and 'brake\\u3164' (an output) look the same. Rename one of them.",
        ),
        ("{inputs: {a: [0, 1]}, outputs: [y], constants: {a\u200b: 1}, rules: []}\n", "look the same|printable name"),
        (
            "{inputs: {road: {categories: [ice, ice\ufe0f]}}, outputs: [y], rules: []}\n",
            "The names 'road=ice' (an input column) and 'road=ice\\ufe0f' (an input column) look the same.",
        ),
        (
            "{inputs: {a: [0, 1]}, outputs: [y], rules: [{name: r, then: y <= 1}, {name: r\u3164, then: y <= 2}]}\n",
            "The rule names 'r' and 'r\\u3164' look the same. Rename one of them.",
        ),
        (
            "{inputs: {road: {categories: [ice, dry]}}, outputs: [y], constants: {ice\u3164: 1}, rules: []}\n",
            "The name 'ice' is used twice: for a category of 'road' and for a constant.",
        ),
    ],
)
def test_names_that_look_the_same_are_refused(text, message):
    with pytest.raises(RuleError) as caught:
        Specification.from_yaml(text)
    assert any(part in str(caught.value) for part in message.split("|"))
