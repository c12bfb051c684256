"""Models that are not safe, each for one reason, so that the soundness bench shows that it can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.rules import Specification
from studies.bench.box_attacks import Opponent
from studies.bench.soundness_attacks import Batch
from studies.bench.soundness_programs import HeadProgram
from studies.bench.soundness_subjects import data_for, makers
from tests.support.sampling import FloatArray, Judge

__all__ = ["UNSAFE"]

Array = npt.NDArray[np.float32]
Found = Iterator[tuple[Judge, Batch]]

ONE_HALF_SPACE = """
inputs: {a: [-3, 5], b: [-7, 2], c: [0.1, 90]}
outputs: [y, w]
rules:
  - {name: half-space, when: a - 0.7 * b + 0.3 * c <= 11.7, then: 0.3 * y - 0.7 * w <= 0.7}
"""


def _count(quick: bool) -> int:
    return 20_000 if quick else 1_000_000


def _plain(spec: Specification) -> Callable[[FloatArray], Array]:
    """Return a network that was trained on the task without any rule."""
    X, Y = (torch.from_numpy(part.astype(np.float32)) for part in data_for(spec, 500))
    shift, scale = X.mean(dim=0), X.std(dim=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(X.shape[1], 24), nn.ReLU(), nn.Linear(24, Y.shape[1]))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network((X - shift) / scale), Y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def outputs(x: FloatArray) -> Array:
        with torch.inference_mode():
            answer: Array = network((torch.from_numpy(x.astype(np.float32)) - shift) / scale).numpy()
        return answer

    return outputs


def _opponent() -> Opponent:
    return Opponent(makers(quick=True)["oblique, at the limit"](), np.random.default_rng(0))


def _without_rules(quick: bool) -> Found:
    """The plain network."""
    opponent = _opponent()
    spec = opponent.subject.spec
    X = opponent.facets(_count(quick), np.float32)
    Y = _plain(spec)(X)
    yield Judge(spec), Batch(X, X, Y, Y, "torch")


def _without_slack(quick: bool) -> Found:
    """Certified heads, but oblique rows are compared in plain float32: Q x <= q."""
    opponent = _opponent()
    judge, program = Judge(opponent.subject.spec), HeadProgram(opponent.subject, slack=False)
    for dtype in (np.float32, np.float64):
        X = opponent.borders(_count(quick) // 2, dtype)
        Z = opponent.own(X) * 10
        yield judge, Batch(X, X, Z, program(X, Z), "NumPy")


def _projected(quick: bool) -> Found:
    """The plain network and, where the rule is active (decided exactly), y - g max(0, g.y - h) / |g|^2 in float32."""
    spec = Specification.from_yaml(ONE_HALF_SPACE)
    judge, plain = Judge(spec), _plain(spec)
    X = _opponent().facets(_count(quick), np.float32)
    y = plain(X)
    g, h = np.array([0.3, -0.7], dtype=np.float32), np.float32(0.7)
    ((_, active),) = judge.active(X)
    excess = np.maximum(y @ g - h, np.float32(0)) * active.astype(np.float32)
    Y = y - (excess / (g @ g))[:, None] * g
    yield judge, Batch(X, X, y, Y, "NumPy")


def _half_precision(quick: bool) -> Found:
    """A certified model, but everything behind the backbone is computed in bfloat16, as autocast would."""

    def order(A: Array, v: Array, b: Array) -> Array:
        parts = [torch.tensor(part).to(torch.bfloat16) for part in (A, v, b)]
        total = torch.einsum("rkn,rn->rk", parts[0].expand(len(v), -1, -1), parts[1]) + parts[2]
        result: Array = total.float().numpy()
        return result

    opponent = _opponent()
    judge, program = Judge(opponent.subject.spec), HeadProgram(opponent.subject, order)
    X = opponent.facets(_count(quick) // 10, np.float32)
    Z = opponent.corners(X)
    yield judge, Batch(X, X, Z, program(X, Z), "bfloat16")


UNSAFE: dict[str, Callable[[bool], Found]] = {
    "an uncertified network": _without_rules,
    "a plain float32 gate, without slack": _without_slack,
    "a float32 projection layer": _projected,
    "a certified head run in bfloat16": _half_precision,
}
"""Name -> function of `quick` that yields judged batches."""
