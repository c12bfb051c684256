"""Tables in heads of rules: every category by its own number, exactly; what the kernel asks of them is all needed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import smle
import smle_check
from smle.certificates.agreement import require_same_rules
from smle.certificates.document import Certificate
from smle.errors import CertificateError, ContradictionError, DataError, NotCertifiedError
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import program_of
from smle.rules import Specification
from smle.tables import Reader
from support.builder import Package, accepted, refusal, repacked
from support.rules_cases import MERGED, TABLES, rules_case
from support.sampling import Judge, hard_points

TINY = 2.0**-126
LIST = """
inputs: {article: {categories: [a, b, c]}, w: [0, 1]}
outputs: [price]
tables:
  low: {key: article, values: {a: -1, b: 0.1, c: 0}}
  cap: {key: article, values: {a: 10, b: 0.3, c: 1.7}}
rules:
  - {name: list, then: "low[article] <= price <= cap[article]"}
"""


def package_of(text: str) -> Package:
    return repacked(certify_rules(Specification.from_yaml(text)))


def rows_of(spec: Specification, rng: np.random.Generator, count: int, dtype: type) -> np.ndarray:
    return np.concatenate(list(hard_points(spec, rng, count, dtype=dtype)))


# --- what is served


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("text", [TABLES, MERGED, LIST], ids=["tables", "merged", "list"])
def test_every_answer_obeys_and_allowed_ones_stay(text, dtype):
    spec, rng = Specification.from_yaml(text), np.random.default_rng(3)
    program, judge = program_of(certify_rules(spec)), Judge(spec)
    X = rows_of(spec, rng, 1500, dtype)
    Y = (rng.normal(size=(len(X), len(spec.targets))) * 10.0 ** rng.integers(-2, 3, (len(X), 1))).astype(np.float32)
    tables = np.concatenate([np.float32([float(v) for v in table.values]) for table in spec.tables] or [[0.0, 3.0]])
    near = rng.random(Y.shape) < 0.5  # numbers of the tables, and their neighbors
    Y[near] = np.nextafter(
        rng.choice(tables, near.sum()).astype(np.float32), rng.choice(np.float32([-9, 9, 0]), near.sum())
    )
    odd = rng.random(Y.shape) < 0.03
    Y[odd] = rng.choice(np.float32([np.nan, np.inf, -np.inf, 1e38, -1e-42]), odd.sum())
    served = program(X, Y)
    assert judge.violations(X, served) == []
    for rows in (1, 5, 20):  # printed in another way
        assert judge.violations(X[:rows], program(X[:rows], Y[:rows])) == []
    Z = np.nan_to_num(Y, nan=1e38, posinf=1e38, neginf=1e38)
    kept = (np.abs(Z) < 1e30).all(axis=1) & ((Z == 0) | (np.abs(Z) >= TINY)).all(axis=1)
    kept[kept] = [not judge.violations(X[i : i + 1], Y[i : i + 1]) for i in np.flatnonzero(kept)]
    assert kept.sum() > 30
    if text is not TABLES:  # a sum of outputs has a little slack
        assert (served[kept] == Y[kept]).all()


def test_limits_are_the_nearest_floats_on_the_allowed_side():
    program = program_of(certify_rules(Specification.from_yaml(LIST)))
    X = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=np.float64)
    high = program(X, np.full((3, 1), 99, np.float32))[:, 0]
    low = program(X, np.full((3, 1), -99, np.float32))[:, 0]
    for found, exact, out in ((high, (10, "0.3", "1.7"), 99), (low, (-1, "0.1", 0), -99)):
        for value, number in zip(found, map(Fraction, exact), strict=True):
            beyond = Fraction(float(np.nextafter(value, np.float32(out))))
            assert (
                (Fraction(float(value)) <= number < beyond) if out > 0 else (beyond < number <= Fraction(float(value)))
            )


def test_a_table_says_what_rules_one_by_one_say():
    names = [f"art{i:02d}" for i in range(30)]
    stated = "\n".join(
        f"  - {{name: n{i}, when: article == {n}, then: price <= {i}.{i % 7}}}" for i, n in enumerate(names)
    )
    start = f"inputs: {{article: {{categories: [{', '.join(names)}]}}}}\noutputs: [price, fee]\n"
    other = "  - {name: choice, then: price <= 3 or fee <= 1}\n"
    numbers = ", ".join(f"{n}: {i}.{i % 7}" for i, n in enumerate(names))
    table = f"tables: {{cap: {{key: article, values: {{{numbers}}}}}}}\n"
    one = Specification.from_yaml(f"{start}rules:\n{stated}\n{other}")
    two = Specification.from_yaml(f"{start}{table}rules:\n  - {{name: list, then: 'price <= cap[article]'}}\n{other}")
    rng = np.random.default_rng(0)
    X = np.eye(30)[rng.integers(0, 30, 3000)]
    Y = (rng.normal(size=(3000, 2)) * [20, 3]).astype(np.float32)
    scale = np.ones(2)
    first, second = (program_of(certify_rules(spec, scale=scale))(X, Y) for spec in (one, two))
    assert (first == second).all()


def test_served_rows_name_the_entry_that_bound():
    spec = Specification.from_yaml(TABLES)
    model = smle.correct(lambda X: np.full((len(X), 2), 50.0), spec)
    X = pd.DataFrame({"article": ["a", "c"], "region": ["north", "east"], "weight": [1.0, 9.0]})
    _, info = model.predict(X, return_info=True)
    assert {"cap[a]", "extra[a, north]"} <= set(info["bound"][0])
    assert "extra[c, east]" in info["bound"][1]
    merged = smle.correct(lambda X: np.full((len(X), 2), 50.0), Specification.from_yaml(MERGED))
    _, info = merged.predict(pd.DataFrame({"article": ["art07", "art00"], "weight": [9.0, 9.0]}), return_info=True)
    assert info["bound"] == [("cap art07", "choice"), ("choice",)]


@pytest.mark.parametrize("seed", range(3))
def test_articles_that_must_take_different_alternatives_are_proved(seed):
    """Some lists end below the price that a small discount asks for, others allow no large discount."""
    rng, names = np.random.default_rng(seed), [f"a{k}" for k in range(80)]
    low = rng.uniform(1, 50, 80).round(2)
    cap = (low * rng.uniform(1.1, 3, 80)).round(2)
    kind = rng.integers(3, size=80)
    promo = np.where(kind == 0, low * 0.8, (low + cap) / 2).round(2)  # 0: only a discount is left
    most = np.where(kind == 1, 0.02, 0.5)  # 1: only the price is left
    columns = {"low": low, "cap": cap, "promo": promo, "most": most}

    def numbers(own: np.ndarray) -> str:
        return "{" + ", ".join(f"{name}: {value}" for name, value in zip(names, own, strict=True)) + "}"

    spec = Specification.from_yaml(
        f"inputs: {{article: {{categories: [{', '.join(names)}]}}}}\noutputs: [price, discount]\ntables:\n"
        + "".join(f"  {name}: {{key: article, values: {numbers(own)}}}\n" for name, own in columns.items())
        + "rules:\n"
        + '  - {name: list, then: "low[article] <= price <= cap[article]"}\n'
        + '  - {name: discounts, then: "0 <= discount <= most[article]"}\n'
        + '  - {name: either, then: "discount >= 0.05 or price <= promo[article]"}\n'
    )
    program = program_of(certify_rules(spec))
    X, Y = np.eye(80, dtype=np.float32).repeat(20, axis=0), rng.normal(20, 40, (1600, 2)).astype(np.float32)
    Y[:, 1] /= 200
    served, own = program(X, Y), X.argmax(1)
    assert Judge(spec).violations(X, served) == []
    discounted = np.clip(Y, np.stack([low, np.full(80, 0.05)], 1)[own], np.stack([cap, most], 1)[own])
    lowered = np.clip(Y, np.stack([low, np.zeros(80)], 1)[own], np.stack([np.minimum(cap, promo), most], 1)[own])
    ways = np.stack([np.isclose(served, way, rtol=1e-5, atol=1e-5).all(axis=1) for way in (discounted, lowered)])
    assert ways.any(axis=0).all()  # each is the nearest one of its alternative
    assert ways[0][kind[own] == 0].all()
    assert ways[1][kind[own] == 1].all()


def test_a_new_price_list_needs_no_new_model(tmp_path):
    model = smle.correct(lambda X: np.full((len(X), 1), 50.0), Specification.from_yaml(LIST))
    other = Specification.from_yaml(LIST.replace("a: 10", "a: 11"))
    X = pd.DataFrame({"article": ["a"], "w": [0.0]})
    assert model.predict(X)[0] == 10
    assert smle.correct(lambda X: np.full((len(X), 1), 50.0), other).predict(X)[0] == 11
    with pytest.raises(CertificateError, match="list"):
        require_same_rules(model.certificate_, other)


# --- rows without exactly one member


HOSTILE = [[0, 0, 0], [1, 1, 0], [0.5, 0.5, 0], [np.nan, 0, 1], [2, 0, 0], [-1, 1, 1]]


@pytest.mark.parametrize("members", HOSTILE)
def test_rows_without_exactly_one_member_are_refused(members):
    torch = pytest.importorskip("torch")
    from smle.networks.certified_head import CertifiedHead

    spec = Specification.from_yaml(LIST)
    with pytest.raises(DataError, match=r"one 1 among zeros|missing|article"):
        Reader(spec).read_encoded(np.array([[*members, 0.5]]))
    head = CertifiedHead(certify_rules(spec))
    rows = torch.tensor([[1, 0, 0, 0.5], [*members, 0.5]], dtype=torch.float64)
    with pytest.raises(DataError, match=r"expected one 1 among zeros.*row 2"):
        head(rows, torch.zeros(2, 1))
    assert head(rows[:1], torch.zeros(1, 1)).item() == 0


def test_a_box_refuses_them_where_a_condition_looks_up():
    torch = pytest.importorskip("torch")
    from smle.nn import BoxNetwork

    text = "inputs: {w: [0, 10], kind: {categories: [a, b]}}\noutputs: [y]\n"
    text += "tables: {least: {key: kind, values: {a: 2, b: 5}}}\n"
    text += 'rules:\n  - {name: r, when: "w >= least[kind]", then: y <= 1}\n'
    network = BoxNetwork(torch.nn.Linear(3, 4), Specification.from_yaml(text), embedding=4).eval()
    assert network(torch.tensor([[3.0, 1.0, 0.0]])) <= 1
    with pytest.raises(DataError, match="expected one 1 among zeros"):
        network(torch.tensor([[3.0, 1.0, 1.0]]))


@pytest.mark.parametrize("members", HOSTILE)
def test_what_is_computed_for_such_rows_is_the_limit_of_some_member(members):
    """Should one pass all doors, numbers of two members are never added up."""
    program = program_of(certify_rules(Specification.from_yaml(LIST)))
    for count in (1, 50):
        X = np.tile(np.array([*members, 0.5]), (count, 1))
        found = program(X, np.full((count, 1), 99, np.float32))[:, 0]
        assert set(found.tolist()) <= set(np.float32([10, 0.29999998, 1.6999999]).tolist())


# --- the kernel: each of its obligations is needed


def changed(package: Package, name: str, place: tuple[int, ...], value: float) -> Package:
    package.weights[name] = package.weights[name].copy()
    package.weights[name][place] = value
    return package.seal()


def test_what_is_issued_is_accepted():
    for name in ("tables", "merged"):
        assert accepted(rules_case(name))
    assert accepted(package_of(LIST))


@pytest.mark.parametrize("member", [0, 1, 2])
@pytest.mark.parametrize(("stage", "beyond"), [("affine_upper", np.inf), ("affine_lower", -np.inf)])
def test_every_number_is_on_the_allowed_side_by_itself(member, stage, beyond):
    package = package_of(LIST)
    slope = package.weights[f"clips.{stage}_slope"]
    outward = np.nextafter(slope[0, member], np.float32(beyond))
    outward = np.float32(np.copysign(TINY, beyond)) if abs(outward) < TINY else outward
    assert "not proved" in refusal(changed(package, f"clips.{stage}_slope", (0, member), outward))
    package = package_of(LIST)
    inward = np.nextafter(slope[0, member], np.float32(-beyond))
    inward = np.float32(np.copysign(TINY, -beyond)) if abs(inward) < TINY else inward
    assert accepted(changed(package, f"clips.{stage}_slope", (0, member), inward))


@pytest.mark.parametrize(
    ("text", "member", "value", "reason"),
    [
        (LIST.replace("price <= cap", "price < cap"), 0, 10, "not proved"),  # a strict limit is not reached
        (LIST, 3, 1, "not proved"),  # the column of another input
        (LIST, 1, 1e-40, "too close to 0"),
    ],
)
def test_other_numbers_are_refused(text, member, value, reason):
    assert reason in refusal(changed(package_of(text), "clips.affine_upper_slope", (0, member), value))


def test_with_an_offset_sums_are_rounded_and_that_is_paid_for():
    """The numbers of the table less an offset that is added again: exact in rationals, and still refused."""
    package = package_of(LIST)
    package.weights["clips.affine_upper_slope"][0, :3] -= 1
    assert "not proved" in refusal(changed(package, "clips.affine_upper", (0,), 1))


def test_numbers_of_the_check_are_prescribed():
    package = rules_case("tables")
    inputs = package.weights["check.inputs"]
    for place in range(0, len(inputs), 5):
        changed_one = changed(rules_case("tables"), "check.inputs", (place,), np.nextafter(inputs[place], 9))
        assert "not what the rules prescribe" in refusal(changed_one)


def test_tables_that_cross_are_refused_at_the_category():
    with pytest.raises(ContradictionError, match="article=b"):
        certify_rules(Specification.from_yaml(LIST.replace("b: 0.3", "b: 0.05")))
    names = "\n".join(f"  - {{name: low art{i:02d}, when: article == art{i:02d}, then: price >= 8}}" for i in range(9))
    with pytest.raises((ContradictionError, NotCertifiedError), match=r"cap art0[1-7].*low art0|low art0.*cap art0"):
        certify_rules(Specification.from_yaml(MERGED.replace("  - {name: choice", f"{names}\n  - {{name: choice")))


# --- entries: each merged rule is stated by name


def entry_package(change) -> Package:
    package = rules_case("merged")
    (rule,) = (rule for rule in package.document["specification"]["rules"] if "entries" in rule)
    change(rule, package.document["specification"])
    return package.seal()


def test_each_merged_rule_is_proved_by_name():
    proved = {item.rule: item for item in rules_case("merged").check()}
    assert {f"cap art{i:02d}" for i in range(1, 29)} | {"floor", "choice"} == proved.keys()
    assert proved["cap art08"].sentence == "price <= 8.1"
    assert proved["cap art08"].where == "where 'article=art08' is 1 and weight > 3" or (
        "article=art08" in proved["cap art08"].where and "weight > 3" in proved["cap art08"].where
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rule, _: rule["entries"].append([29, "more"]), "does not bind"),
        (lambda rule, _: rule["entries"].insert(0, [0, "more"]), "does not bind"),
        (lambda rule, _: rule["entries"].append([30, "more"]), "one group"),
        (lambda rule, _: rule["entries"].reverse(), "increase"),
        (lambda rule, _: rule["entries"].append(rule["entries"][-1]), "increase"),
        (lambda rule, _: rule["entries"][0].append(1), "a member and a name"),
        (lambda rule, _: rule["entries"].__setitem__(0, [1, 2]), "short text"),
        (lambda rule, _: rule["entries"].__setitem__(0, [1, "cap art05"]), "rule name"),
        (lambda rule, _: rule["entries"].__setitem__(0, [1, "choice"]), "rule name"),
        (lambda rule, _: rule["entries"].clear(), "one group"),
        (lambda rule, _: rule.update(entries=None), "expected a list"),
        (lambda rule, _: rule.update(entries={"1": "a"}), "expected a list"),
        (lambda rule, _: rule["entries"].append([10**9, "far"]), "index below"),
        (lambda rule, spec: spec["rows"].append({"terms": [[1, "-1"], [30, "1"]], "bound": "5", "strict": False})
         or spec["regions"].append(sorted([*spec["regions"][rule["regions"][0]], len(spec["rows"]) - 1]))
         or rule["regions"].append(len(spec["regions"]) - 1), "mixes"),
    ],
)  # fmt: skip
def test_entries_that_do_not_follow_are_refused(change, reason):
    assert reason in refusal(entry_package(change))


def test_saved_rules_and_their_certificate_agree():
    spec = Specification.from_yaml(MERGED)
    certificate = certify_rules(spec)
    require_same_rules(certificate, Specification.from_yaml(spec.to_yaml()))
    with pytest.raises(CertificateError, match=r"rules\.yaml"):
        require_same_rules(certificate, Specification.from_yaml(MERGED.replace("price <= 8.1", "price <= 8.2")))
    with pytest.raises(CertificateError, match=r"rules\.yaml"):
        require_same_rules(certificate, Specification.from_yaml(MERGED.replace("name: cap art08", "name: limit art08")))
    assert isinstance(certificate, Certificate)
    assert smle_check.StatedSpecification(certificate.document["specification"], certificate.block).rules[1].entries
