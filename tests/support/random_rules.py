"""Random rules that some answer obeys everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import yaml

from smle.errors import RuleError
from smle.rules import Specification


def random_rules(
    rng: np.random.Generator, *, rules: tuple[int, int] = (2, 12), outputs: tuple[int, int] = (1, 4)
) -> tuple[Specification, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Return rules, the outputs' units (1e-3 to 1e6), and an answer that obeys them, as a function of the inputs."""
    d, m = int(rng.integers(1, 4)), int(rng.integers(outputs[0], outputs[1] + 1))
    unit = 10.0 ** rng.uniform(-3, 6, m)
    offset, slope = rng.normal(0, 1, m), rng.normal(0, 1, (m, d)) * (rng.random() < 0.5)

    def literal(holds: bool) -> str:
        width = 1 if m == 1 or rng.random() < 0.5 else int(rng.integers(2, m + 1))
        used, w = rng.choice(m, width, replace=False), rng.normal(0, 1, width)
        room = rng.exponential(0.5) + 0.05
        if not holds and rng.random() < 0.5:
            room = -room
        left = " + ".join(f"{w[i] / unit[c]:.9g} * y{c}" for i, c in enumerate(used))
        moving = "".join(f" + {v:.9g} * x{j}" for j, v in enumerate(w @ slope[used]) if v)
        return f"{left} {'<' if rng.random() < 0.2 else '<='} {w @ offset[used] + room:.9g}{moving}"

    while True:
        stated = []
        for r in range(int(rng.integers(rules[0], rules[1] + 1))):
            count = 1 if rng.random() < 0.6 else int(rng.integers(2, 4))
            rule = {"name": f"r{r}", "then": " or ".join(literal(i == 0) for i in range(count))}
            if rng.random() < 0.6:
                rule["when"] = f"x{rng.integers(d)} {rng.choice(['<=', '>='])} {rng.uniform(0.2, 0.8):.3g}"
            stated.append(rule)
        inputs, names = {f"x{j}": [0, 1] for j in range(d)}, [f"y{i}" for i in range(m)]
        try:
            spec = Specification.from_yaml(yaml.safe_dump({"inputs": inputs, "outputs": names, "rules": stated}) + "\n")
        except RuleError:  # an alternative that is always true
            continue
        return spec, unit, lambda X: (offset + X @ slope.T) * unit
