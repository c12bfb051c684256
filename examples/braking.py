"""Braking: a controller learned from drivers that never brakes too little, or for nothing.

Shows: rules from a text, a plain network beside the safe one, the printed certificate, saving and loading.
Run it: python examples/braking.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sklearn.model_selection import train_test_split

from smle import NetworkRegressor, SafeRegressor, Specification, load
from smle.baselines import violation_rate
from smle.demo import BRAKING_RULES, braking_data
from smle.estimators import without_rules


def main(*, rows: int = 6000, max_epochs: int = 200) -> dict[str, float]:
    """Train, compare, save, load; return the shares of test rows that break a rule."""
    spec = Specification.from_yaml(BRAKING_RULES)
    train, test = train_test_split(braking_data(rows), random_state=0)
    inputs = list(spec.columns)

    plain = SafeRegressor(without_rules(spec), NetworkRegressor(max_epochs=max_epochs), random_state=0).fit(
        train[inputs], train["brake"]
    )
    safe = SafeRegressor(spec, NetworkRegressor(max_epochs=max_epochs), random_state=0).fit(
        train[inputs], train["brake"]
    )
    print(safe.certificate_)

    broken = {}
    for name, model in (("plain", plain), ("safe", safe)):
        broken[name] = violation_rate(spec, test[inputs], model.predict(test[inputs]))
        print(f"{name:5}  R2 {model.score(test[inputs], test['brake']):.4f}  rows that break a rule {broken[name]:.2%}")

    with tempfile.TemporaryDirectory() as folder:
        safe.save(Path(folder) / "model")
        again = load(Path(folder) / "model")  # checks the certificate in exact arithmetic
        assert (again.predict(test[inputs]) == safe.predict(test[inputs])).all()
    return broken


if __name__ == "__main__":
    main()
