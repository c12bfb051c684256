"""A hospital: nine orders for a patient, by a network, behind seventeen rules.

Shows: labels that exclude and imply each other (hospital.yaml), laboratory values with gaps and units from 0.001 to a
million, a border between two inputs, alternatives, which rules are on for a patient.
The data are simulated and the limits are made up. This is not medical advice.
Run it: python examples/hospital.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from smle import NetworkClassifier, SafeClassifier, Specification
from smle.baselines import violation_rate

RULES = Path(__file__).with_name("hospital.yaml")
SHARE_MISSING = {"lactate": 0.35, "troponin": 0.3, "creatinine": 0.1, "platelets": 0.1, "saturation": 0.03}


def patients(rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Simulate patients and what was ordered. From the first row to the last they get older and sicker."""
    rng = np.random.default_rng(seed)
    drift = np.linspace(0, 1, rows)
    age = rng.normal(58 + 6 * drift, 20).clip(0, 105).round().astype(int)
    sick = rng.gamma(1.5, 0.5 + 0.1 * drift)
    ward = rng.choice(["medicine", "surgery", "cardiology", "infections"], rows, p=[0.45, 0.3, 0.15, 0.1])
    allergy = rng.choice(["none", "contrast", "unknown"], rows, p=[0.85, 0.05, 0.1])
    temperature = (36.8 + 0.5 * sick + 0.5 * (ward == "infections") + rng.normal(0, 0.6, rows)).clip(33, 42)
    pressure = (128 - 12 * sick + 0.2 * age + rng.normal(0, 14, rows)).clip(40, 250)
    saturation = (98 - 2.2 * sick - 0.02 * age + rng.normal(0, 1.5, rows)).clip(50, 100)
    lactate = (0.8 + 0.9 * sick * rng.lognormal(0, 0.4, rows)).clip(0.2, 25)
    creatinine = (0.8 + 0.006 * age) * rng.lognormal(0.15 * sick, 0.35)
    troponin = np.where(ward == "cardiology", 0.04, 0.006) * rng.lognormal(0.3 * sick, 1.0)
    platelets = (2.6e5 * rng.lognormal(-0.25 * sick, 0.45)).clip(2e3, 9.5e5)

    def ordered(score: np.ndarray, noise: float = 0.5) -> np.ndarray:
        return (score + rng.logistic(0, noise, rows) > 0).astype(int)

    icu = ordered(2.2 * (sick - 2.2) + 0.5 * (lactate - 3.5) + 0.15 * (88 - saturation) + 0.04 * (85 - pressure))
    isolation = ordered(8 * (ward == "infections") - 4.5 + 0.4 * (temperature - 37))
    antibiotics = ordered(1.8 * (temperature - 38.2) + 0.7 * (lactate - 2) + (ward == "infections"))
    aminoglycoside = antibiotics * ordered(sick - 1 - 1.6 * (creatinine - 1.2))
    scan = ordered(1.2 * (ward == "surgery") + 0.5 * sick - 2.2 * (creatinine - 0.9) - 2 * (allergy != "none") - 0.6)
    heparin = ordered(1.1 * np.log(troponin / 0.02) + 1.5 * (ward == "surgery") - 3 * (platelets < 6e4))
    transfusion = ordered(1.5 * np.log(2.5e4 / platelets) - 0.5)
    home = (1 - icu) * ordered(2 - 1.8 * sick - 0.03 * (age - 60) - 2 * isolation - antibiotics)
    fall = ordered(0.09 * (age - 70) + 0.4 * sick)
    table = pd.DataFrame(
        {
            "age": age, "temperature": temperature.round(1), "pressure": pressure.round(), "ward": ward,
            "saturation": saturation.round(), "lactate": lactate.round(1),
            "creatinine": creatinine.clip(0.2, 25).round(2),
            "troponin": troponin.clip(0.001, 45).round(3), "platelets": platelets.round(-3), "allergy": allergy,
            "icu": icu, "isolation": isolation, "antibiotics": antibiotics, "aminoglycoside": aminoglycoside,
            "contrast scan": scan, "heparin": heparin, "transfusion": transfusion, "discharge": home,
            "fall watch": fall,
        }
    )  # fmt: skip
    for name, share in SHARE_MISSING.items():
        table[name] = table[name].mask(rng.random(rows) < share)
    return table


def main(*, rows: int = 6000, max_epochs: int = 100) -> dict[str, float]:
    """Fit, and look at single patients. Return the shares of new rows on which a rule is broken."""
    spec, table = Specification.from_file(RULES), patients(rows)
    orders = [item.name for item in spec.outputs]
    inputs, truth = table.drop(columns=orders), table[orders]
    half = rows // 2
    model = SafeClassifier(spec, NetworkClassifier(max_epochs=max_epochs), random_state=0).fit(
        inputs[:half], truth[:half]
    )
    model.certificate_.check()
    new = inputs[half:]
    print(f"share of correct orders: {model.label_accuracy(new, truth[half:]):.4f}")
    answers, info = model.predict(new[:3], return_info=True)
    for answer, rules in zip(answers, info["active_rules"], strict=True):
        wanted = [name for name, value in zip(orders, answer, strict=True) if value]
        print(f"{', '.join(wanted) or 'nothing'}  under: {', '.join(rules)}")
    broken = {
        "physicians": violation_rate(spec, new, truth[half:]),
        "safe": violation_rate(spec, new, model.predict(new)),
    }
    for who, share in broken.items():
        print(f"{who} broke a rule in {share:.1%} of cases")
    return broken


if __name__ == "__main__":
    main()
