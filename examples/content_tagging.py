"""Content tagging: labels that exclude each other, and labels that imply others.

Shows: SafeClassifier with labels, pairs read off the data, predictions that agree with probabilities.
Run it: python examples/content_tagging.py
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from smle import NetworkClassifier, SafeClassifier, Specification
from smle.baselines import violation_rate

LABELS = ["animal", "dog", "cat", "indoor", "beach", "night"]
RULES = {
    "dogs and cats are animals": "dog or cat implies animal",
    "one place": "at_most_one(indoor, beach)",
    "the beach is empty at night": "not (beach and night)",
}
FEATURES = [f"f{j}" for j in range(12)]


def pictures(rows: int, *, seed: int = 0) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
    """Simulate image features and the tags that people gave, which are not always consistent."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (rows, len(FEATURES)))
    logits = 3 * features @ rng.normal(size=(len(FEATURES), len(LABELS))) - 0.5
    tags = (logits + rng.logistic(size=logits.shape) >= 0).astype(np.int64)
    return pd.DataFrame(features, columns=FEATURES), tags


def main(*, rows: int = 4000, max_epochs: int = 100) -> float:
    """Train and tag; return the share of rows whose tags break a rule."""
    spec = Specification.build(inputs=dict.fromkeys(FEATURES, (-1, 1)), labels=LABELS, rules=RULES)
    features, tags = pictures(rows)
    # Labels that are tied together are decided best by a network that was trained freely and corrected at the end.
    model = SafeClassifier(spec, NetworkClassifier(max_epochs=max_epochs), random_state=0).fit(features, tags)
    print(model.certificate_)
    found = model.predict(features)
    assert ((model.predict_proba(features) >= 0.5) == found).all()
    print(f"Tags right: {(found == tags).mean():.1%}")
    print(f"People's tags break a rule in {violation_rate(spec, features, tags):.1%} of rows")
    return violation_rate(spec, features, found)


if __name__ == "__main__":
    main()
