"""Ratios, percent and lists of numbers: exact, kept as written, and refused where two readings differ."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import smle
from smle.errors import RuleError
from smle.rules import Clause, Literal, Polytope, Row, Specification, variable, variables
from smle.rules.expressions import to_text
from smle.rules.parser import parse

F = Fraction
HEAD = """inputs:
  debt: [0, 100_000]
  income: [1, 1e6]
  loss: [-10, -1]
  age: {range: [18, 90], integer: true}
  kind: {categories: [shop, home]}
outputs: [limit, rate]
rules:
"""
DEBT, INCOME, LOSS, AGE, SHOP = range(5)


def compiled(then="rate >= 0", when=None):
    condition = "" if when is None else f"    when: '{when}'\n"
    spec = Specification.from_yaml(f"{HEAD}  - name: r\n{condition}    then: '{then}'\n")
    assert Specification.from_yaml(spec.to_yaml()) == spec
    return spec.rules[0]


@pytest.mark.parametrize(
    ("when", "rows"),
    [
        ("debt / income >= 0.4", [(((DEBT, F(-1)), (INCOME, F(2, 5))), F(0), False)]),
        ("40 % <= debt / income", [(((DEBT, F(-1)), (INCOME, F(2, 5))), F(0), False)]),
        ("100 * debt / income > 40", [(((DEBT, F(-1)), (INCOME, F(2, 5))), F(0), True)]),
        ("debt / loss >= 0.4", [(((DEBT, F(1)), (LOSS, F(-2, 5))), F(0), False)]),  # the divisor is below 0
        ("debt / -income <= -0.4", [(((DEBT, F(-1)), (INCOME, F(2, 5))), F(0), False)]),
        ("debt / (income / 12) >= 5", [(((DEBT, F(-1)), (INCOME, F(5, 12))), F(0), False)]),
        ("debt / (income - loss) >= 1", [(((DEBT, F(-1)), (INCOME, F(1)), (LOSS, F(-1))), F(0), False)]),
        ("debt / income >= debt / (2 * income) + 0.1", [(((DEBT, F(-1)), (INCOME, F(1, 5))), F(0), False)]),
        ("debt / (income + `kind=shop`) < 1", [(((DEBT, F(1)), (INCOME, F(-1)), (SHOP, F(-1))), F(0), True)]),
        ("50 / income >= 0.5", [(((INCOME, F(1)),), F(100), False)]),
    ],
)
def test_a_ratio_is_multiplied_out_exactly(when, rows):
    rule = compiled(when=when)
    assert rule.regions == (Polytope(tuple(Row(*row) for row in rows)),)
    assert rule.when == when


def test_a_limit_on_a_ratio_is_a_limit_that_moves_with_the_input():
    limit = Clause((Literal(((0, F(1)),), ((INCOME, F(-5)),), F(0)),))
    assert compiled("limit / income <= 5").requirement.clauses == (limit,)
    assert compiled("max(limit / income, rate / income) <= 5").requirement.clauses[0] == limit


@pytest.mark.parametrize(
    ("low", "fits"), [("1e-6", True), ("0", False), ("-1", False), ("0.7000000001", True), ("0.69", True)]
)
def test_the_ranges_decide_whether_a_divisor_may_be_zero(low, fits):
    text = f"inputs: {{a: [0, 1], b: [{low}, 1]}}\noutputs: [y]\nrules: [{{name: r, when: a / b > 1, then: y > 0}}]\n"
    if fits:
        assert Specification.from_yaml(text).rules[0].when == "a / b > 1"
    else:
        with pytest.raises(RuleError, match=rf"may be 0: the range of 'b' is \[{low}, 1\]. Change the range"):
            Specification.from_yaml(text)
    # the float32 next to 0.7000000001 is below 0.7
    text = text.replace("a / b", "a / (b - 0.7)")
    with pytest.raises(RuleError, match=r"divides by 'b - 0\.7', which may be 0"):
        Specification.from_yaml(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("x <= 10%", "x <= 10 %"),
        ("x <= 0.5 % * y", "x <= 0.5 % * y"),
        ("x <= (1 + 10 %) * y", "x <= (1 + 10 %) * y"),
        ("x <= 1_000_000.5", "x <= 1000000.5"),
        ("x <> 3", "x != 3"),
        ("10 % <= x / y <= 12.5 % and y > 0", "10 % <= x / y <= 12.5 % and y > 0"),
    ],
)
def test_numbers_as_people_write_them(text, canonical):
    assert to_text(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_percent_is_a_hundredth():
    assert compiled("rate <= 12.5 %").requirement == compiled("rate <= 0.125").requirement
    assert compiled("rate <> 3").requirement == compiled("rate != 3").requirement


@pytest.mark.parametrize(
    ("when", "same"),
    [
        ("age in [18, 19]", "18 <= age <= 19"),
        ("age in [30, 18, 19, 18]", "18 <= age <= 19 or age == 30"),
        ("age not in [18, 19, 21]", "age == 20 or age > 21"),
        ("income in [5]", "income == 5"),
        ("income in [5, 6, 7.5]", "income == 5 or income == 6 or income == 7.5"),
        ("debt / income in [1, 2, 3]", "debt == income or debt == 2 * income or debt == 3 * income"),
        ("age in [debt, income]", "age == debt or age == income"),
    ],
)
def test_lists_of_numbers_in_when(when, same):
    regions = set(compiled(when=when).regions) - set(compiled(when="age < 18").regions)
    assert regions == set(compiled(when=same).regions)


def test_lists_of_numbers_in_then_are_ends_and_gaps():
    listed = compiled("limit in [0, 100, 50]")
    assert set(listed.requirement.clauses) == set(
        compiled("limit == 0 or limit == 50 or limit == 100").requirement.clauses
    )
    assert len(compiled(f"limit in {list(range(0, 2000, 5))}").requirement.clauses) == 401
    spec = Specification.from_yaml(f"{HEAD}  - name: r\n    then: limit in [0, 50, 100]\n")
    x = [F(0), F(1), F(-1), F(20), F(1), F(0)]
    allowed = [v for v in range(-10, 120) if not spec.violated(x, [F(v), F(0)])]
    assert allowed == [0, 50, 100]


@pytest.mark.parametrize("value", ["0", "0.5", "-3", "100", "16777216", "0.3", "16777217", "1e39", "1e-39"])
def test_an_output_equals_a_number_exactly_where_float32_holds_it(value):
    with np.errstate(over="ignore"):
        held = F(value) == 0 or (
            F(value) == F(*float(np.float32(value)).as_integer_ratio()) if float(value) < 1e38 else False
        )
    for then in (f"limit == {value}", f"limit == {value} or rate >= 1", f"limit in [{value}]"):
        if held:
            compiled(then)
        else:
            with pytest.raises(RuleError, match="float32 cannot hold"):
                compiled(then)


def test_python_lists_are_lists_and_never_ranges():
    age, limit = variables("age limit")
    assert str(age.isin([18, 65])) == "age == 18 or age == 65"
    assert str(limit.isin([0, 50, 100])) == "limit in [0, 50, 100]"
    assert str(variable("kind").isin(["shop", "home"])) == "kind in [shop, home]"


def test_what_is_served_obeys_ratios_and_lists():
    spec = Specification.from_yaml(
        HEAD
        + "  - {name: indebted, when: debt / income >= 40 %, then: limit == 0}\n"
        + "  - {name: steps, then: 'limit in [0, 50, 100]'}\n"
        + "  - {name: affordable, then: 0 <= rate / income <= 0.5}\n"
        + "  - {name: young, when: 'age in [18, 19]', then: rate == 0.25}\n"
    )
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "debt": random.uniform(0, 1e5, 400),
            "income": random.uniform(1, 1e5, 400),
            "loss": random.uniform(-10, -1, 400),
            "age": random.integers(18, 91, 400),
            "kind": random.choice(["shop", "home"], 400),
        }
    )
    table.loc[:50, "debt"] = 0.4 * table.loc[:50, "income"]  # on the border, or a rounding error beside it
    raw = random.normal((50, 20_000), (60, 30_000), (400, 2))
    served = np.asarray(smle.correct(lambda _: raw, spec).predict(table))
    assert set(np.unique(served[:, 0])) == {0, 50, 100}
    indebted = [F(d) >= F(2, 5) * F(i) for d, i in zip(table["debt"], table["income"], strict=True)]
    assert not served[indebted, 0].any()
    assert (served[table["age"] < 20, 1] == 0.25).all()
    assert all(0 <= F(float(r)) <= F(i) / 2 for r, i in zip(served[:, 1], table["income"], strict=True))
