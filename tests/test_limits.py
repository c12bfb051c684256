"""What smle does not do: each limit of docs/limits.md, shown."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import smle
from smle import Specification
from smle.baselines import violation_rate
from smle.errors import ContradictionError, ConversionError, DataError, NotCertifiedError, RuleError
from smle.nn import BoxNetwork

ROOT = Path(__file__).parents[1]
HEAD = "inputs: {income: [0, 100], age: [18, 90]}\noutputs: [limit, rate]\nrules:\n"
RULES = HEAD + "  - {name: affordable, then: 0 <= limit <= 0.5 * income}\n"
X = pd.DataFrame({"income": [0.0, 50.0, 100.0], "age": [20.0, 40.0, 60.0]})


def nonsense(table):
    return np.full((len(table), 2), np.nan)


def greedy(table):
    return np.full((len(table), 2), 1000.0)


def test_accuracy_is_not_proved():
    model = smle.correct(nonsense, Specification.from_yaml(RULES))
    assert model.certificate_.check()
    with pytest.warns(UserWarning, match="NaN"):
        answers = model.predict(X)
    assert violation_rate(model.specification_, X, answers) == 0


def test_outside_the_domain_the_rules_hold_at_the_clamped_input():
    model = smle.correct(greedy, Specification.from_yaml(RULES))
    far = X.assign(income=300.0)
    with pytest.raises(DataError, match="outside the domain"):
        model.predict(far)
    limit = np.asarray(model.predict(far, out_of_domain="clip"))[:, 0]
    assert (limit <= 0.5 * 100).all()  # the border of the domain, not half of 300


def test_arithmetic_behind_the_model_is_not_covered():
    model = smle.correct(greedy, Specification.from_yaml(RULES))
    answers = np.asarray(model.predict(X))
    assert violation_rate(model.specification_, X, answers) == 0
    assert violation_rate(model.specification_, X, answers * 1.1) > 0


COUNTED = "{step: 1, range: [0, 9]}"
STEPS = f"inputs: {{income: [0, 100]}}\noutputs: {{a: {COUNTED}, b: {COUNTED}}}\n"
RULES_BEGIN = "rules:\n"
EACH = ", ".join(f"l{i}" for i in range(40))
REFUSED = {
    "products": (HEAD, "then: limit * rate <= 1", "Rules are linear"),
    "functions": (HEAD, "then: limit <= sqrt(income)", "sqrt"),
    "relations": (HEAD, "then: limit increases with income", "increases"),
    "sums over rows": (HEAD, "then: sum(limit) <= 1", "sum"),
    "conditions on outputs": (HEAD, "when: rate >= 5, then: limit <= 1", "implies"),
    "a part of then": (HEAD, "then: limit <= 1 and (age >= 60 implies rate <= 5)", "a part of the requirement"),
    "ratios": (HEAD, "then: limit / income <= 1", "may be 0"),
    "infinite ranges": (HEAD.replace("100]", ".inf]"), "then: limit <= 1", "finite"),
    "large numbers": (HEAD, "then: limit <= 1.0e39", "another unit"),
    "small numbers": (HEAD, "when: income <= 1.0e-40, then: limit <= 1", "another unit"),
    "long counts": (
        f"inputs: {{x: [0, 1]}}\nlabels: [{EACH}]\nrules:\n", f"then: 'at_most(6, {EACH})'", "at most 10,000"
    ),
    "nothing": (HEAD, "then: limit <= 1 and limit >= 2", "contradict"),
    "a point": (HEAD, "then: 0.1 * income <= limit <= 0.35 * income", "rule 'r' leaves 'limit' a single point"),
    "float32": (HEAD, "then: limit == 0.3", "float32 cannot hold"),
    "equality under a condition": (STEPS, "when: income <= 5, then: a == b", "not supported yet"),
    "equality as an alternative": (HEAD, "then: limit == rate or limit >= 3", "not supported yet"),
    "equality with real inputs": (STEPS, "then: a + b == income", "tolerance"),
    "equality with abs": (HEAD, "then: abs(limit) == rate", "tolerance"),
    "equality of other steps": (STEPS.replace("step: 1", "step: 0.3", 1), "then: a == b", "one step"),
    "equality in whole numbers": (STEPS, "then: 2 * a == 3 * b", "coefficient 1"),
    "steps and labels": (STEPS + "labels: [risky]\n", "then: a >= 1", "labels and choices"),
    "many cents": (STEPS.replace(COUNTED, "{step: 0.01, range: [0, 999999]}"), "then: a >= 1", "131,072"),
    "steps without a range": (STEPS.replace(", range: [0, 9]", ""), "then: a >= 1", "how large"),
}  # fmt: skip


@pytest.mark.parametrize(("head", "rule", "message"), REFUSED.values(), ids=REFUSED)
def test_rules_that_are_refused(head, rule, message):
    text = f"{head.removesuffix(RULES_BEGIN)}{RULES_BEGIN}  - {{name: r, {rule}}}\n"
    with pytest.raises((RuleError, ContradictionError, NotCertifiedError), match=message):
        smle.correct(greedy, Specification.from_yaml(text))


def test_searches_are_bounded_as_the_page_says():
    from smle.advice import examine
    from smle.heads.grid import safe_steps, step_blocks, whole_numbers
    from smle.heads.rules import safe_answers
    from smle.nearest import alternatives, label_branches
    from smle.nearest.onnx import label_nodes, stacks
    from smle.regions import decide
    from smle.rules import affine, compiler, normalize

    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    for said in (
        f"{alternatives._BEAM} open choices per row and level, {alternatives._WIDE_BEAM} in a second try; "
        f"{alternatives._LEVELS} levels",
        f"{label_branches.STEPS:,} steps per row, then {label_branches._NODES} nodes of HiGHS if clauses have at most "
        f"{label_branches._MOST_LITERALS:,} literals",
        f"{step_blocks._PIECES} choices of alternatives; "
        f"whole points around the real one for up to {step_blocks._FEW} ",
        f"{stacks._PIECES} choices of alternatives; implications among {label_nodes._MOST_LABELS:,} labels",
        f"{safe_answers.MAX_LEAVES} leaves; with steps {safe_steps.MAX_LEAVES}, "
        f"and {whole_numbers._SECONDS:g} s per problem",
        f"{decide.MAX_NODES:,} nodes per question, {examine._SECONDS:g} s for redundant rules",
        f"more than {compiler.MAX_REGIONS:,} regions, {compiler.MAX_CLAUSES:,} clauses or groups of a count, "
        f"{compiler.MAX_LITERALS:,} alternatives in a clause, {affine._MAX_CASES:,} cases",
    ):
        assert said in page
    assert normalize._MAX_GROUPS == compiler.MAX_CLAUSES


def test_estimators_take_one_kind_of_output():
    mixed = RULES.replace("rules:", "labels: [risky]\nrules:")
    for kind in (smle.SafeRegressor, smle.SafeClassifier):
        with pytest.raises(DataError, match="Expected `"):
            kind(mixed).fit(X, np.zeros((3, 3)))


def test_a_learned_box_serves_one_convex_part():
    spec = Specification.from_yaml("inputs: {x: [-1, 1]}\noutputs: [y]\nrules: [{name: r, then: y <= 0 or y >= 10}]\n")
    rows = torch.linspace(-1, 1, 101).reshape(-1, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        box = smle.project(BoxNetwork(torch.nn.Linear(1, 4), spec, embedding=4)).eval()
    with torch.no_grad():
        served = box(rows)
    assert (served <= 0).all() or (served >= 10).all()
    both = smle.correct(lambda table: 20 * table["x"], spec).predict(pd.DataFrame({"x": [-1.0, 1.0]}))
    assert np.ravel(both).tolist() == [-20, 20]


def test_a_function_is_not_stored(tmp_path):
    model = smle.correct(greedy, Specification.from_yaml(RULES))
    assert model.certificate_.check()
    with pytest.raises(ConversionError, match="cannot be stored"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_people_and_plain_models_are_not_bound():
    """A certificate is about one model; `violation_rate` judges what others answer."""
    spec = Specification.from_yaml(RULES)
    assert violation_rate(spec, X, greedy(X)) == 1


def test_every_limit_of_the_page_has_a_test():
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (path, name)
    own = re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for path, name in named if path == "tests/test_limits.py"} == set(own) - {own[-1]}
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| limit")]
    assert all("`tests/" in line for line in rows), "a limit without a test"
