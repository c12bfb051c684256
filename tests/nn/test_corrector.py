"""smle.correct: the model's answers where rules allow them, certified ones elsewhere, refusals that help."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from smle.assurance import certify, correct, project, verify
from smle.errors import ContradictionError, RuleError
from smle.export import check_onnx, write_network
from smle.guarantees.answers.nearest import label_columns, nearest_outputs
from smle.guarantees.regions.cells import arrange
from smle.guarantees.regions.requirement import Polytopes, requirement_of
from smle.nn import corrector as corrector_module
from smle.nn.duels import turned_pairs
from smle.nn.network import SafeNetwork
from smle.rules import Specification
from support.sampling import Judge, hard_points

INPUTS = "inputs: {a: [-1, 1], b: [-1, 1]}\n"
RULES = {
    "one region": "outputs: [p, q]\nrules:\n  - {name: r, when: a >= 0.2, then: p <= 0.1 and p - q <= 0.05}\n",
    "two-sided, everywhere": "outputs: [p, q, s]\nrules:\n  - {name: r, then: -0.2 <= p <= 0.3}\n",
    "oblique regions that meet": (
        "outputs: [p, q]\nrules:\n  - {name: r, when: a + 2 * b >= 0.3, then: p + q >= 0}\n"
        "  - {name: s, when: b <= 0.4, then: -1 <= p - q <= 1}\n"
    ),
    "regions that touch": (
        "outputs: [p]\nrules:\n  - {name: r, when: a >= 0.5, then: p <= 0.1}\n"
        "  - {name: s, when: a <= 0.5, then: p >= 0}\n"
    ),
    "everywhere and a region": (
        "outputs: [p, q]\nrules:\n  - {name: r, then: p >= 0}\n  - {name: s, when: a >= 0, then: q <= 0}\n"
    ),
    "one limit follows from others": (
        "outputs: [p, q]\nrules:\n  - {name: r, then: 0 <= p <= 0.1 and 0 <= q <= 0.1 and p + q <= 0.2}\n"
    ),
}
ALTERNATIVES = {
    "or": "outputs: [p, q]\nrules:\n  - {name: r, when: a >= 0.2, then: p <= 0 or q >= 0.3}\n",
    "either end": "outputs: [p]\nrules:\n  - {name: r, when: a >= 0.2, then: p <= -0.1 or p >= 0.1}\n",
    "a pair of labels": "labels: [p, q, r]\nrules:\n  - {name: r, then: not (p and q)}\n",
    "three pairs of labels": "labels: [p, q, r]\nrules:\n  - {name: r, never_together: [[p, q], [p, r], [q, r]]}\n",
    "labels that imply": (
        "labels: [cat, dog, animal]\nrules:\n  - {name: r, then: cat or dog implies animal}\n"
        "  - {name: s, then: not (cat and dog)}\n"
    ),
    "choices": (
        "choices: {way: [x, y, z]}\nrules:\n  - {name: r, when: a <= 0, then: way != x}\n"
        "  - {name: s, when: b >= 0, then: way == z}\n"
    ),
}


def spec_of(text: str) -> Specification:
    return Specification.from_yaml(INPUTS + text)


def inputs(count: int, seed: int = 0, d: int = 2) -> Tensor:
    return 2 * torch.rand(count, d, generator=torch.Generator().manual_seed(seed)) - 1


def wild_model(outputs: int, seed: int = 0, *, scale: float = 1.0) -> nn.Sequential:
    """Return a random MLP whose outputs have mean about 0 and deviation about `scale`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))
    last = model[-1]
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(3)
        y = model(inputs(500))
        last.weight.mul_(scale / y.std(dim=0)[:, None])
        last.bias.zero_()
        last.bias.copy_(-model(inputs(500)).mean(dim=0))
    return model


def answers(model: nn.Module, X: Tensor) -> np.ndarray:
    with torch.no_grad():
        y: np.ndarray = model(X).numpy()
    return y


def breaking(spec: Specification, X: Tensor, y: np.ndarray) -> np.ndarray:
    wrong = np.zeros(len(X), dtype=bool)
    wrong[Judge(spec).judge(X.numpy(), y).rows] = True
    return wrong


def corrected(text: str, seed: int = 0) -> tuple[Specification, nn.Module, SafeNetwork]:
    spec = spec_of(text)
    model = wild_model(len(spec.targets), seed)
    return spec, model, correct(model, spec, inputs(400, seed=seed + 1))


# --- laws


@pytest.mark.parametrize("text", [*RULES.values(), *ALTERNATIVES.values()], ids=[*RULES, *ALTERNATIVES])
def test_certified_and_no_violation_on_hard_points(text: str) -> None:
    spec, model, network = corrected(text)
    assert {proved.rule for proved in certify(network).check()} == {rule.name for rule in spec.rules}
    judge, before = Judge(spec), 0
    for kind in (np.float32, np.float64):
        for X in hard_points(spec, np.random.default_rng(0), 1500, dtype=kind):
            points = torch.from_numpy(X)
            before += len(judge.judge(X, answers(model, points.float())).rows)
            assert judge.violations(X, answers(network, points)) == []
    assert before > 0  # there was something to correct


@pytest.mark.parametrize("text", RULES.values(), ids=RULES)
@pytest.mark.parametrize("seed", [0, 1])
def test_limits_move_only_answers_that_break_them(text: str, seed: int) -> None:
    spec, model, network = corrected(text, seed)
    X = inputs(2000, seed=seed + 1)  # the first 400 were the examples
    original, ours = answers(model, X), answers(network, X)
    wrong, rounding = breaking(spec, X, original), 4e-7 * np.abs(original).max()
    assert wrong.any()
    assert not breaking(spec, X, ours).any()
    moved = np.abs(ours - original).max(axis=1)
    assert moved[~wrong].max(initial=0) < 3 * rounding  # borders are approached up to a margin of rounding
    assert moved[wrong].max() > 100 * rounding


def test_where_no_rule_applies_answers_are_bit_for_bit_the_models() -> None:
    _, model, network = corrected(RULES["one region"])
    X = inputs(2000, seed=9)
    X = X[X[:, 0] < 0.19]
    np.testing.assert_array_equal(answers(network, X), answers(model, X))


def test_alternatives_are_fitted_to_what_occurs() -> None:
    spec = spec_of(ALTERNATIVES["either end"])
    X = inputs(500)
    for sign in (-1, 1):
        model = nn.Sequential(wild_model(1, scale=0.02), nn.Linear(1, 1)).requires_grad_(False)
        model[1].weight.fill_(1.0)
        model[1].bias.fill_(0.15 * sign)
        network = correct(model, spec, X)
        kept = ~breaking(spec, X, answers(model, X))
        assert kept.mean() > 0.9
        assert np.abs(answers(network, X) - answers(model, X))[kept].max() < 1e-6


def test_a_pair_of_labels_loses_only_the_weaker_one() -> None:
    _, model, network = corrected(ALTERNATIVES["a pair of labels"])
    X = inputs(2000, seed=5)
    before, after = answers(model, X) >= 0, answers(network, X) >= 0
    both = before[:, 0] & before[:, 1]
    assert 0 < both.sum() < len(X)
    np.testing.assert_array_equal(after[~both], before[~both])
    assert (after[both].sum(axis=1) <= before[both].sum(axis=1) - 1).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["three pairs of labels", "labels that imply"])
def test_labels_in_conflict_are_decided_as_the_nearest_allowed_ones(name: str, seed: int) -> None:
    spec, model, network = corrected(ALTERNATIVES[name], seed)
    X = inputs(2000, seed=seed + 7)
    logits = answers(model, X).astype(np.float64)
    nearest = nearest_outputs(spec, X.numpy(), 0.5 * (1 + np.tanh(logits / 2))) > 0.5
    assert breaking(spec, X, logits.astype(np.float32)).mean() > 0.05
    assert ((answers(network, X) >= 0) != nearest).mean() < 0.01


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12),
    st.integers(0, 31),
    st.sampled_from(["", "when: a >= 0.1, "]),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_whatever_the_labels_and_their_conflicts(
    seed: int, pairs: list[tuple[int, int]], turned: int, when: str, scale: float
) -> None:
    """Any number of pairs among five labels, some of them of the absence of a label."""
    sides = [f"not l{i}" if turned >> i & 1 else f"l{i}" for i in range(5)]
    parts = [f"not ({sides[i]} and {sides[k]})" for i, k in pairs if i != k]
    if not parts:
        return
    spec = spec_of(f"labels: [l0, l1, l2, l3, l4]\nrules:\n  - {{name: r, {when}then: {' and '.join(parts)}}}\n")
    model, X = wild_model(5, seed, scale=scale), inputs(300, seed=seed)
    network = correct(model, spec, X)
    certify(network).check()
    Z = inputs(500, seed=seed + 1)
    original, ours = answers(model, Z), answers(network, Z)
    assert not breaking(spec, Z, ours).any()
    kept = ~breaking(spec, Z, original)
    assert ((ours >= 0) != (original >= 0))[kept].mean() < 0.05


def test_a_label_without_conflicts_keeps_its_logit() -> None:
    spec = spec_of("labels: [p, q, r, s]\nrules:\n  - {name: n, never_together: [[p, q], [p, r], [q, r]]}\n")
    model, X = wild_model(4), inputs(400)
    network = correct(model, spec, X)
    np.testing.assert_allclose(answers(network, X)[:, 3], answers(model, X)[:, 3], atol=1e-5)


def test_a_label_that_is_wanted_on_and_off_is_no_duel() -> None:
    """`a implies b` and `not (b and c)` turn b both ways; limits may still serve, and otherwise it is refused."""
    spec = spec_of("labels: [p, q, r]\nrules:\n  - {name: n, then: (p implies q) and not (q and r)}\n")
    clauses = requirement_of(Polytopes(spec, arrange(spec)), 0).without_pairs().clauses
    assert turned_pairs(clauses, label_columns(spec)) is None
    network = correct(wild_model(3), spec, inputs(400))
    assert not breaking(spec, inputs(500, seed=2), answers(network, inputs(500, seed=2))).any()


def test_too_many_exclusions_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrector_module, "_NUMBERS", 8)
    with pytest.raises(ValueError, match=r"Expected fewer exclusions\. Got 3 among 3 outputs"):
        corrected(ALTERNATIVES["three pairs of labels"])


def test_linear_layers_at_the_end_become_one() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3)))
    spec = spec_of(ALTERNATIVES["three pairs of labels"])
    network = correct(model, spec, inputs(200))
    assert [type(layer) for layer in network.backbone] == [nn.Linear, nn.ReLU, nn.Linear]


def test_answers_beyond_what_was_seen_are_limited_to_the_widened_range_in_regions_alone() -> None:
    spec = spec_of("outputs: [p, q]\nrules:\n  - {name: r, when: a >= 0, then: p <= 100}\n")
    model = nn.Linear(2, 2, bias=False).requires_grad_(False)
    model.weight.copy_(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    examples = torch.tensor([[0.5, -0.1], [0.5, 0.1]] * 15)  # outputs from -0.1 to 0.1
    network = correct(model, spec, examples)
    X = torch.tensor([[0.5, 1.0], [0.5, 0.25], [-0.5, 1.0]])
    np.testing.assert_allclose(answers(network, X), [[0.3, -0.3], [0.25, -0.25], [1, -1]], atol=2e-4)


@pytest.mark.filterwarnings("ignore:Where:UserWarning")  # one convex part of alternatives may be a small one
@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=1, max_size=3),
    st.sampled_from(["", "when: a >= 0.1, ", "when: a - b <= 0.4, "]),
    st.booleans(),
    st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_whatever_the_model_and_the_limits(
    seed: int, rows: list[tuple[int, int, int]], when: str, alternatives: bool, scale: float
) -> None:
    parts = [f"{p} * p + {q} * q <= {h * scale!r}" for p, q, h in rows if p or q]
    if not parts:
        return
    then = (" or " if alternatives else " and ").join(parts)
    try:
        spec = spec_of(f"outputs: [p, q]\nrules:\n  - {{name: r, {when}then: {then}}}\n")
    except RuleError:  # an equality
        return
    model, X = wild_model(2, seed, scale=scale), inputs(300, seed=seed)
    network, refusal = None, ""
    try:
        network = correct(model, spec, X)
    except ValueError as error:
        refusal = "" if isinstance(error, ContradictionError) else str(error)
    if network is None:
        assert not refusal or ("independent" in refusal and len(parts) > 2 and not alternatives)
        return
    certify(network).check()
    original, ours = answers(model, X), answers(network, X)
    assert not breaking(spec, X, ours).any()
    if not alternatives:
        kept = ~breaking(spec, X, original)
        assert np.abs(ours - original)[kept].max(initial=0) <= 1e-5 * np.abs(original).max()


# --- what comes out


def test_exported_to_onnx_with_its_certificate(tmp_path: Path) -> None:
    spec, _, network = corrected(RULES["oblique regions that meet"])
    certificate = write_network(network, tmp_path / "model.onnx")
    assert certificate is not None
    check_onnx(tmp_path / "model.onnx")
    running = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    judge = Judge(spec)
    for X in hard_points(spec, np.random.default_rng(0), 600):
        feeds = {name: np.ascontiguousarray(X[:, [i]]) for i, name in enumerate(spec.columns)}
        y = np.concatenate(running.run(list(spec.targets), feeds), axis=1)
        assert judge.violations(X, y) == []
        np.testing.assert_allclose(y, answers(network, torch.from_numpy(X)), atol=1e-4)


def test_the_model_is_copied_in_eval_mode_and_not_changed() -> None:
    spec = spec_of(RULES["one region"])
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    before = copy.deepcopy(model.state_dict())
    network = correct(model, spec, inputs(100).requires_grad_(True))
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not network.training
    assert not any(p.requires_grad for p in network.parameters())
    X = inputs(50, seed=3)
    X[:, 0] = -X[:, 0].abs()
    np.testing.assert_array_equal(answers(network, X), answers(model.eval(), X))


def test_a_change_of_mode_leaves_the_certified_heads() -> None:
    _, _, network = corrected(RULES["oblique regions that meet"])
    before = {name: value.clone() for name, value in network.deployed.state_dict().items()}
    network.train().eval()
    assert verify(network).hold
    assert all(torch.equal(value, before[name]) for name, value in network.deployed.state_dict().items())


def test_nan_from_the_model_becomes_a_safe_constant_in_regions() -> None:
    class Sometimes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x > 0.9, torch.nan, x)

    spec = spec_of(RULES["one region"])
    network = correct(Sometimes(), spec, 0.8 * inputs(200))
    X = torch.tensor([[0.95, 0.0], [0.5, 0.95], [-0.5, 0.95]])
    y = answers(network, X)
    assert not breaking(spec, X, y)[:2].any()
    assert np.isnan(y[2]).any()  # nothing is required there, and nothing is hidden


def test_without_rules_the_network_is_the_model() -> None:
    spec, model, network = corrected("outputs: [p, q]\nrules: []\n")
    X = inputs(100, seed=4)
    np.testing.assert_array_equal(answers(network, X), answers(model, X))
    assert spec.rules == ()


def test_arrays_and_tensors_are_the_same_examples() -> None:
    spec, X = spec_of(RULES["one region"]), inputs(100)
    model = wild_model(2)
    first, second = (correct(model, spec, x) for x in (X, X.numpy().tolist()))
    np.testing.assert_array_equal(answers(first, X), answers(second, X))


# --- what is said about it

EITHER = "outputs: [p, q]\nrules:\n  - {name: r, when: a >= 0, then: p <= -0.5 or p >= 0.5}\n"


def test_the_correction_counts_allowed_answers_that_moved() -> None:
    spec, X = spec_of(EITHER), inputs(900)
    model = nn.Linear(2, 2, bias=False).requires_grad_(False)
    model.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))  # p = b: a quarter on either side is allowed
    with pytest.warns(UserWarning, match=r"Where 'r' alone applies, \d+ of \d+ answers to the examples moved although"):
        network = correct(model, spec, X)
    inside, allowed = X[:, 0] >= 0, X[:, 1].abs() >= 0.5
    moved = (network(X) - model(X)).abs().amax(dim=1) > 1e-5
    (place,) = network.correction.places
    assert place.rules == ("r",)
    assert (place.examples, place.allowed) == (inside.sum(), (inside & allowed).sum())
    assert place.moved == (inside & allowed & moved).sum() > 0.2 * place.allowed
    assert place.farthest == pytest.approx((network(X) - model(X))[inside & allowed].abs().max().item())
    assert network.correction.outside == (~inside).sum()
    assert network.correction.share == place.moved / place.allowed
    assert f"of {place.allowed} that obeyed {place.moved} moved ({network.correction.share:.1%})" in repr(network)
    assert copy.deepcopy(network).correction == network.correction
    assert project(network).correction is None  # its heads may be others


@pytest.mark.parametrize("text", RULES.values(), ids=RULES)
def test_plain_limits_move_nothing_that_they_allow(text: str) -> None:
    correction = corrected(text)[2].correction
    assert correction.share == 0
    assert sum(place.examples for place in correction.places) + correction.outside == 400
    assert sum(place.examples - place.allowed for place in correction.places) > 0


@pytest.mark.parametrize("name", ["labels that imply", "choices"])
def test_labels_and_choices_count_as_decisions(name: str) -> None:
    spec, model = spec_of(ALTERNATIVES[name]), wild_model(3)
    X = inputs(400, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = correct(model, spec, X)
    before, after = answers(model, X), answers(network, X)
    decide = (lambda y: y >= 0) if name != "choices" else (lambda y: y.argmax(axis=1)[:, None])
    other = (decide(before) != decide(after)).any(axis=1)
    assert sum(place.moved for place in network.correction.places) == (other & ~breaking(spec, X, before)).sum()


def test_few_examples_are_said_aloud() -> None:
    spec, model = spec_of(RULES["one region"]), wild_model(2)
    outside, inside = inputs(100) - torch.tensor([1.0, 0.0]), inputs(30).abs() * 0.5 + 0.2
    with pytest.warns(UserWarning, match=r"Few examples \(29\) lie where 'r' alone applies.*at least 30"):
        correct(model, spec, torch.cat([outside.clamp(min=-1), inside[:29]]))
    correct(model, spec, torch.cat([outside.clamp(min=-1), inside]))  # warnings are errors here
    rules = RULES["one region"] + "  - {name: s, when: b >= 0.9, then: q <= 1}\n"
    with pytest.warns(
        UserWarning, match=r"Few examples \(\d\) lie where 'r', 's' apply together \(and 1 more such place"
    ):
        correct(model, spec_of(rules), inputs(150))


def test_in_the_slack_of_an_oblique_border_answers_are_corrected_and_beyond_they_are_the_models() -> None:
    spec = spec_of("outputs: [p]\nrules:\n  - {name: r, when: a + 2 * b >= 0.3, then: p >= 5}\n")
    model = nn.Linear(2, 1).requires_grad_(False)
    network = correct(model, spec, inputs(200))
    a = torch.linspace(-1, 1, 2001)
    for distance, mine in ((4e-16, False), (1e-12, True)):  # the exact condition holds for none of these points
        X = torch.stack([a.double(), (0.3 - distance - a.double()) / 2], dim=1)
        y, original = network(X), model(X.float())
        assert not breaking(spec, X, original.numpy()).any()
        assert bool((y == original).all()) is mine


@pytest.mark.parametrize(
    "rules",
    [
        "labels: [p, q]\nrules:\n  - {name: on, when: a >= 0, then: p}\n  - {name: off, when: a <= 0.5, then: not p}\n",
        "choices: {c: [x, y]}\nrules:\n  - {name: on, then: c == x}\n  - {name: off, when: b >= 0, then: c == y}\n",
        "outputs: [p, q]\nrules:\n  - {name: on, then: p >= 1}\n  - {name: off, when: b >= 0, then: p <= 0.5}\n",
    ],
    ids=["labels", "choices", "numbers"],
)
def test_contradicting_rules_are_named_with_an_input(rules: str) -> None:
    with pytest.raises(ContradictionError, match=r"Rules 'on' and 'off' cannot hold together: .*, for example at a="):
        correct(wild_model(2), spec_of(rules), inputs(200))


# --- refusals

TRIANGLE = "outputs: [p, q]\nrules:\n  - {name: sum, then: p >= 0 and q >= 0 and p + q <= 1}\n"


@pytest.mark.parametrize(
    ("text", "model", "examples", "message"),
    [
        ("outputs: [p]\nrules:\n  - {name: dose, then: p <= 0.5 * a}\n", wild_model(1), inputs(9), "'dose', which has"),
        (TRIANGLE, wild_model(2), inputs(200), r"'sum' apply together and limit 3 combinations, of which 2 are"),
        (RULES["one region"], wild_model(2), -inputs(50).abs(), r"none where 'r' applies, for example at a=.*Add rows"),
        (RULES["one region"], wild_model(3), inputs(50), r"2 numbers per row, shape \(50, 2\).*p, q.*\(50, 3\)"),
        (RULES["one region"], nn.Flatten(0), inputs(50), r"Got \(100,\)"),
        (RULES["one region"], nn.LSTM(2, 2), inputs(50), "Got tuple"),
        (RULES["one region"], wild_model(2), inputs(50, d=3), r"\(rows, 2\), the columns a, b. Got \(50, 3\)"),
        (RULES["one region"], wild_model(2), inputs(0), r"Got \(0, 2\)"),
        (RULES["one region"], nn.Identity(), inputs(50) / 0, "infinity in 50 of 50 rows, first in row 0"),
    ],
    ids=["input in then", "too many limits", "no examples", "outputs", "flat", "tuple", "columns", "no rows",
         "infinite"],
)  # fmt: skip
def test_refusals_say_what_to_do(text: str, model: nn.Module, examples: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        correct(model, spec_of(text), examples)


def test_alternatives_that_exclude_each_other_are_refused() -> None:
    rules = "outputs: [p]\nrules:\n  - {name: r, then: p <= 0 or p >= 9}\n  - {name: s, then: p >= 5 or p <= -5}\n"
    model = nn.Linear(2, 1).requires_grad_(False)
    model.weight.zero_()
    model.bias.fill_(2.0)  # r asks p <= 0 then, and s asks p >= 5
    with pytest.raises(ValueError, match=r"'r', 's' leave no room under the alternatives"):
        correct(model, spec_of(rules), inputs(50))


def test_other_formats_are_refused() -> None:
    with pytest.raises(TypeError, match=r"float64\. Call model\.float\(\)"):
        correct(wild_model(2).double(), spec_of(RULES["one region"]), inputs(50))
    with pytest.raises(TypeError, match=r"return float32\. Got torch\.int64"):
        correct(Rounded(), spec_of(RULES["one region"]), inputs(50))


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.long()
