"""Dates in rules and tables: whole days, exact, printed as dates; what is no day is refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression

from smle import NetworkRegressor, SafeRegressor, Specification, diagnose, load
from smle.advice.compare import compare
from smle.errors import DataError, RuleError
from smle.rules import date_text, day_of, rule, variables
from smle.tables import encode_inputs
from smle.tables.table_files import read_table, text_columns
from support.commands import run

RULES = """
inputs:
  opened: [2010-01-01, 2025-01-01]
  closed: {range: [2010-01-01, 2030-12-31], missing: 2030-12-31}
  income: [0, 100]
outputs: [limit]
rules:
  - {name: new, when: opened >= 2020-01-01, then: limit <= 5}
  - {name: short, when: closed - opened < 365, then: limit <= 1}
  - {name: fades, then: 0 <= limit <= 0.01 * (2031-01-01 - opened)}
"""
SPEC = Specification.from_yaml(RULES)
DAYS = [14610.0, 18262.0, 20089.0]
TEXTS = ["2010-01-01", "2020-01-01", "2025-01-01"]


@given(st.dates())
def test_days_and_dates_are_each_other(day: dt.date) -> None:
    assert date_text(day_of(day)) == day.isoformat()
    assert day_of(day.isoformat()) == day_of(day) == (day - dt.date(1970, 1, 1)).days


def test_a_rules_file_with_dates_reads_back() -> None:
    assert Specification.from_yaml(SPEC.to_yaml()) == SPEC
    assert "opened: [2010-01-01, 2025-01-01]" in SPEC.to_yaml()
    assert [float(v) for v in (SPEC.lower[0], SPEC.upper[0])] == [DAYS[0], DAYS[2]]
    assert SPEC.rules[0].when == "opened >= 2020-01-01"
    assert SPEC.rules[0].regions[0].rows[0].bound == -18262
    assert SPEC.violated([day_of("2020-01-01"), day_of("2020-12-30"), 0], [2]) == ("short",)
    assert SPEC.violated([day_of("2020-01-01"), day_of("2020-12-31"), 0], [2]) == ()  # 2020 is a leap year
    assert SPEC.violated([day_of("2019-12-31"), day_of("2030-01-01"), 0], [6]) == ()


def test_dates_in_python() -> None:
    (opened,) = variables("opened")
    made = Specification.build(
        inputs={"opened": (dt.date(2010, 1, 1), dt.date(2025, 1, 1))},
        outputs=["limit"],
        rules=[rule("new", when=opened >= dt.date(2020, 1, 1), then="limit <= 5")],
    )
    assert made.rules[0] == SPEC.rules[0]
    with pytest.raises(RuleError, match="categories or a range"):
        Specification.build(inputs={"opened": ["2010-01-01", "2025-01-01"]}, outputs=["y"])


MISTAKES = {
    "opened >= 2020": "compares a date with a number",
    "income >= 2020-01-01": "compares a date with a number",
    "2 * opened >= 2020-01-01": "compares a date with a number",
    "opened >= 2020-1-1": "Write dates as 2020-01-31",
    "opened >= 01/02/2020": "Write dates as 2020-01-31",
    "opened >= 2020-01-01T12:00": "Write dates as 2020-01-31",
    "opened >= 2021-02-29": "not a day of the calendar",
    "abs(opened) <= 3": "mixes dates and numbers",
    "max(opened, 3) >= closed": "mixes dates and numbers",
    "income >= 5 / 2020-01-01": "divides by a date",
}


@pytest.mark.parametrize("when", MISTAKES)
def test_conditions_that_make_no_sense_are_refused(when: str) -> None:
    with pytest.raises(RuleError, match=MISTAKES[when]):
        Specification.from_yaml(RULES + f"  - {{name: bad, when: '{when}', then: limit <= 9}}\n")


@pytest.mark.parametrize("ends", ["[2010-01-01, 2025]", "[2010-1-1, 2025-01-01]", "[2025-01-01, 2010-01-01]"])
def test_a_range_is_of_dates_or_of_numbers(ends: str) -> None:
    with pytest.raises(RuleError, match="Input 'opened'"):
        Specification.from_yaml(RULES.replace("[2010-01-01, 2025-01-01]", ends, 1))


def test_subtraction_with_spaces_stays_one() -> None:
    text = "inputs: {x: [2010 - 01 - 01, 2025 - 01 - 01]}\noutputs: [y]\nrules: []\n"
    assert [float(SPEC.lower[0]), float(Specification.from_yaml(text).lower[0])] == [14610, 2008]


FORMS = {
    "texts": TEXTS,
    "midnights as text": [f"{text} 00:00:00" for text in TEXTS],
    "datetimes": pd.to_datetime(TEXTS),
    "nanoseconds": np.array(TEXTS, dtype="datetime64[ns]"),
    "dates": [dt.date.fromisoformat(text) for text in TEXTS],
    "days": DAYS,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_date_is_the_same_day(form: str) -> None:
    table = pd.DataFrame({"opened": FORMS[form], "closed": ["2020-01-01", None, "2030-12-31"], "income": 1.0})
    encoded = encode_inputs(SPEC, table)
    assert encoded[:, 0].tolist() == DAYS
    assert encoded[:, 1].tolist() == [18262.0, float(day_of("2030-12-31")), float(day_of("2030-12-31"))]


def test_polars_and_arrays_too() -> None:
    pl = pytest.importorskip("polars")
    dates = [dt.date.fromisoformat(text) for text in TEXTS]
    table = pl.DataFrame({"opened": dates, "closed": [None, None, dates[2]], "income": [1.0, 2.0, 3.0]})
    assert encode_inputs(SPEC, table)[:, 0].tolist() == DAYS
    zoned = table.with_columns(opened=pl.col("opened").cast(pl.Datetime).dt.replace_time_zone("Europe/Rome"))
    with pytest.raises(DataError, match="without a time zone"):
        encode_inputs(SPEC, zoned)
    assert encode_inputs(SPEC, np.array([[14610.0, 18262.0, 1.0]]))[0].tolist() == [14610.0, 18262.0, 1.0]


BAD = {
    "time of day": (pd.to_datetime(["2020-01-01 13:45"]), "with a time of day"),
    "time zone": (pd.to_datetime(["2020-01-01"]).tz_localize("Europe/Rome"), "without a time zone"),
    "another order": (["31.12.2020"], "expected dates such as 2020-01-31"),
    "no day": (["2021-02-29"], "expected dates such as 2020-01-31"),
    "an object": ([{}], "expected dates such as 2020-01-31"),
    "half a day": ([14610.5], "expected whole numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_day_is_refused(case: str) -> None:
    values, said = BAD[case]
    with pytest.raises(DataError, match=said):
        encode_inputs(SPEC, pd.DataFrame({"opened": values, "closed": ["2020-01-01"], "income": 1.0}))


def rows(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    opened = pd.Timestamp("2010-01-01") + pd.to_timedelta(rng.integers(0, 5400, n), unit="D")
    closed = opened + pd.to_timedelta(rng.integers(30, 2000, n), unit="D")
    table = pd.DataFrame({"opened": opened, "closed": closed, "income": rng.uniform(0, 100, n)})
    table.loc[::7, "closed"] = pd.NaT
    table["limit"] = 8 * rng.random(n) + 0.001 * (table["opened"] - pd.Timestamp("2010-01-01")).dt.days
    return table


def test_messages_speak_of_dates(tmp_path: Path) -> None:
    table = rows(300)
    early = table.assign(limit=np.where(table["opened"] < "2011-01-01", 90.0, 0.5))
    assert "of it where opened is 2010-" in diagnose(SPEC, early, early).table()
    table.loc[3, "opened"] = pd.Timestamp("2030-01-01")
    found = diagnose(SPEC, table, table)
    assert "outside [2010-01-01, 2025-01-01]" in found.table()
    with pytest.raises(DataError, match=r"outside \[2010-01-01, 2025-01-01\] \(first 2030-01-01 in row 4\)"):
        SafeRegressor(SPEC, estimator=LinearRegression()).fit(table, table["limit"])
    clash = diagnose(RULES + "  - {name: old, when: opened >= 2021-06-01, then: limit >= 6}\n")
    assert "for example at opened=202" in clash.table()
    later = Specification.from_yaml(RULES.replace("opened >= 2020-01-01", "opened >= 2021-01-01"))
    assert "opened=2020-" in compare(SPEC, later).table()


def test_a_model_with_dates_from_table_to_file(tmp_path: Path) -> None:
    table = rows(300)
    X, y = table.drop(columns="limit"), table["limit"]
    model = SafeRegressor(SPEC, NetworkRegressor(max_epochs=2), compare=False).fit(X, y)
    answers = model.predict(X)
    texts = X.assign(opened=X["opened"].dt.strftime("%Y-%m-%d"))
    np.testing.assert_array_equal(model.predict(texts), answers)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(X), answers)
    X.to_csv(tmp_path / "rows.csv", index=False)
    again = read_table(tmp_path / "rows.csv", text=text_columns(SPEC))
    np.testing.assert_array_equal(encode_inputs(SPEC, again), encode_inputs(SPEC, X))
    result = run("predict", tmp_path / "model", tmp_path / "rows.csv", "-o", tmp_path / "out.csv")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "out.csv")["limit"].to_numpy(np.float32), answers)
    said = run("verify", tmp_path / "model", "--assumptions").output
    assert "Dates are numbers of days from 1970-01-01: opened, closed." in " ".join(said.split())
    assert "opened >= 2020-01-01" in said
    assert "days from 1970-01-01 (2010-01-01 to 2025-01-01)" in " ".join(said.split())


def test_a_stored_estimator_reads_dates_as_days(tmp_path: Path) -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    table = rows(300)
    X, y = table.drop(columns="limit"), table["limit"]
    model = SafeRegressor(SPEC, estimator=HistGradientBoostingRegressor(max_iter=5)).fit(X, y)
    answers = model.predict(X)
    model.save(tmp_path / "model")
    texts = X.assign(opened=X["opened"].dt.strftime("%Y-%m-%d"))
    np.testing.assert_array_equal(load(tmp_path / "model").predict(texts), answers)
    late = (X["opened"] >= "2020-01-01").to_numpy()
    assert late.any()
    assert answers[late].max() <= 5
