"""Rules against tables: `diagnose` for people, with columns matched by name."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from smle.guarantees.advice.diagnose import diagnose_arrays
from smle.guarantees.advice.diagnosis import Diagnosis
from smle.rules import Choice, Specification
from smle.tables import encode_choices, encode_inputs, encode_numbers

__all__ = ["diagnose"]


def diagnose(specification: Specification | str | PathLike[str], X: Any = None, y: Any = None) -> Diagnosis:
    """Check rules before anyone trains: empty regions, contradictions with a witness, rules that say nothing new.

    With data: rows outside the domain, the share of rows in each region, the share that break each rule, and the
    price of obeying (R2 or accuracy of the nearest allowed targets).

    Args:
        specification: A Specification, the path of a rules file, or YAML text.
        X: Table with the input columns, or None.
        y: Table with the output columns, or None.
    """
    given = specification
    spec = given if isinstance(given, Specification) else Specification.from_yaml(given)
    inputs = None if X is None else encode_inputs(spec, X)
    if y is None:
        return diagnose_arrays(spec, inputs)
    choices = [output for output in spec.outputs if isinstance(output, Choice)]
    if not choices:
        return diagnose_arrays(spec, inputs, encode_numbers(spec, y))
    plain = [name for name in spec.targets if not any(name.startswith(f"{c.name}=") for c in choices)]
    parts = [np.asarray(y[name], dtype=np.float64)[:, None] for name in plain]
    for choice in choices:
        picked = encode_choices(choice, y)
        parts.append(picked if choice.pick == "max" else 1.0 - picked)  # scores that pick what the table says
    return diagnose_arrays(spec, inputs, np.concatenate(parts, axis=1))
