"""Load forecast: six hours ahead, with a bounded change from hour to hour and a limit on hot days.

Shows: rules built in Python with a helper, several outputs, cross-validation with scikit-learn.
Run it: python examples/load_forecast.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.model_selection import TimeSeriesSplit, cross_val_score

from smle import NetworkRegressor, SafeRegressor, Specification
from smle.baselines import violation_rate
from smle.rules import bounded_change, rule

AHEAD = [f"in {h} h" for h in range(1, 7)]
BEHIND = [f"{h} h ago" for h in (3, 2, 1)]


def specification(ramp: float = 6.0) -> Specification:
    """No two neighboring hours differ by more than `ramp` MW; on hot days the line carries at most 80 MW."""
    limit = " and ".join(f"`{name}` <= 80" for name in AHEAD)
    return Specification.build(
        inputs={**dict.fromkeys(BEHIND, (0, 120)), "temperature": (-25, 45), "hour": (0, 23)},
        outputs=AHEAD,
        rules=[
            rule("bounded change", then=bounded_change(ramp, AHEAD)),
            rule("line limit in the heat", when="temperature >= 32", then=limit),
        ],
    )


def history(hours: int, *, seed: int = 0) -> pd.DataFrame:
    """Simulate load and temperature; the load jumps now and then when a factory starts."""
    rng = np.random.default_rng(seed)
    t = np.arange(hours + 10)
    temperature = (
        15 + 12 * np.sin(2 * np.pi * t / 24 / 30) + 6 * np.sin(2 * np.pi * (t - 9) / 24) + rng.normal(0, 1, len(t))
    )
    load = 55 + 12 * np.sin(2 * np.pi * (t - 8) / 24) + 0.4 * np.abs(temperature - 18) + rng.normal(0, 1, len(t))
    load += 9 * (rng.random(len(t)) < 0.03)
    columns = {name: load[3 - h : hours + 3 - h] for h, name in zip((3, 2, 1), BEHIND, strict=True)}
    columns |= {"temperature": temperature[3 : hours + 3].clip(-25, 45), "hour": (t[3 : hours + 3] % 24).astype(float)}
    columns |= {name: load[3 + h : hours + 3 + h] for h, name in enumerate(AHEAD)}
    return pd.DataFrame(columns).round(2)


def main(*, hours: int = 4000, max_epochs: int = 150) -> float:
    """Cross-validate and train on everything; return the share of rows that break a rule."""
    spec, table = specification(), history(hours)
    inputs, targets = table[list(spec.columns)], table[AHEAD]
    print(f"The history breaks a rule in {violation_rate(spec, inputs, targets):.1%} of rows")
    model = SafeRegressor(spec, NetworkRegressor(max_epochs=max_epochs), random_state=0)
    scores = cross_val_score(model, inputs, targets, cv=TimeSeriesSplit(3))
    print("R2 on later hours:", ", ".join(f"{score:.3f}" for score in scores))
    model.fit(inputs, targets)
    print(model.certificate_)
    return violation_rate(spec, inputs, model.predict(inputs))


if __name__ == "__main__":
    main()
