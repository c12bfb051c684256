"""The doors of a grid head: NumPy, torch in all its modes, onnxruntime at two levels, flushed and not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smle.certificates.document import Certificate
from smle.heads.grid.program import GridProgram
from smle.nn import SafeNetwork
from smle.rules import Specification
from smle_check.onnx.program import EMBEDDING
from studies.bench.soundness_attacks import answer_of
from studies.bench.soundness_programs import LEVELS, columns_of, feed, head_file, torch_threads
from studies.bench.torch_attacks import MODES, Passes
from tests.support.grid_rules import hard_answers, hard_inputs
from tests.support.runtimes import Case, installed_runtime

__all__ = ["DOORS", "Served"]

Array = npt.NDArray[Any]
Served = list[tuple[Array, Array, "npt.NDArray[np.int8] | None"]]
"""Inputs as they count, what was served, and by what each row was served where a door says so."""
_SLOW = ("export", "compile")  # modes that are taken once in a while


def points(rng: np.random.Generator, spec: Specification, rows: int, dtype: Any) -> tuple[Array, Array, Array]:
    """Return inputs as they are passed, inputs as they count, and answers. A few inputs are NaN or infinite."""
    X, answers = hard_inputs(rng, spec, rows, dtype), hard_answers(rng, spec, rows)
    grouped = {j for group in spec.one_hot for j in group}
    passed = X.copy()
    for j in sorted(set(range(X.shape[1])) - grouped):
        odd = rng.random(rows) < 0.01
        passed[odd, j] = rng.choice(np.array([np.nan, np.inf, -np.inf], dtype=dtype), int(odd.sum()))
        low, high = (np.array(float(side[j])).astype(dtype) for side in (spec.lower, spec.upper))
        X[odd, j] = np.where(passed[odd, j] == np.inf, high, low)
    return passed, X, answers


def numpy_door(rng: np.random.Generator, spec: Specification, certificate: Certificate, rows: int, _: int) -> Served:
    """Serve by the program, in both formats of inputs."""
    program, found = GridProgram(certificate), Served()
    for dtype in (np.float32, np.float64):
        passed, X, answers = points(rng, spec, rows, dtype)
        found.append((X, *program.explained(passed, answers)))
    return found


def torch_door(
    rng: np.random.Generator, spec: Specification, certificate: Certificate, rows: int, number: int
) -> Served:  # fmt: skip
    """Serve by a network in four modes of torch, flushed and not, in both formats of inputs."""
    network, found = SafeNetwork.of(Passes(), spec, certificate).eval(), Served()
    quick = [name for name in MODES if name not in _SLOW]
    chosen = [quick[(4 * number + i) % len(quick)] for i in range(4)] + (
        [_SLOW[number % 2]] if number % 50 == 7 else []
    )
    for place, name in enumerate(chosen):
        flush, dtype = bool((number + place) % 2), (np.float32, np.float64)[(number + place // 2) % 2]
        passed, X, answers = points(rng, spec, max(rows // 2, 8), dtype)
        with warnings.catch_warnings(), torch_threads(1, flush=flush):
            warnings.simplefilter("ignore")
            served = MODES[name](network, torch.from_numpy(passed), torch.from_numpy(answers)).detach().numpy()
        found.append((X, served, None))
    return found


def onnx_door(
    rng: np.random.Generator, spec: Specification, certificate: Certificate, rows: int, number: int
) -> Served:  # fmt: skip
    """Serve by onnxruntime in a process of its own: a large batch, a few small ones; flushed every other time."""
    cuts = [slice(0, 1), slice(1, 2), slice(2, 35), slice(35, 35 + 2 * rows)]
    passed, X, answers = points(rng, spec, cuts[-1].stop, np.float32)
    head = head_file(spec, certificate, monitor=bool(number % 3))
    feeds = [{**feed(spec, passed[cut]), EMBEDDING: answers[cut]} for cut in cuts]
    case = Case(head, columns_of(spec), feeds, LEVELS[0] if number % 4 == 3 else LEVELS[-1])
    (calls,) = installed_runtime().answers([case], flush=bool(number % 2))
    m, found = len(spec.targets), Served()
    for cut, y in zip(cuts, calls, strict=True):
        if y is None:
            raise RuntimeError("onnxruntime did not answer.")
        found.append((X[cut], answer_of(y, cut.stop - cut.start, m), None))
    return found


Door = Callable[[np.random.Generator, Specification, Certificate, int, int], Served]
DOORS: dict[str, Door] = {"NumPy": numpy_door, "torch": torch_door, "onnxruntime": onnx_door}
