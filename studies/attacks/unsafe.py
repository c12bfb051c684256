"""Heads that are not safe, each for one reason, so that the campaign shows that it can fail."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import smle_check
from smle.heads.box.box_program import Box
from smle.heads.table import certify_head
from smle.nn import SafeNetwork
from smle.rules import Specification
from smle_check.heads.clips import limits_of
from studies.attacks.doors import Passes, in_modes
from studies.attacks.points import Batch, BoxAttacker, GridAttacker, RulesAttacker, chunks
from studies.attacks.rule_texts import RULES
from studies.attacks.shapes import SEQUENCES, misplaced
from studies.attacks.subjects import Subject, boxes, data_for, stated
from tests.support.sampling import FloatArray, Judge
from tests.support.written_again import BoxAgain, RulesAgain

Array = npt.NDArray[np.float32]
Found = Iterator[tuple[Any, Batch]]
"""Batches, each with its judge."""

ONE_HALF_SPACE = """
inputs: {a: [-3, 5], b: [-7, 2], c: [0.1, 90]}
outputs: [y, w]
rules:
  - {name: half-space, when: a - 0.7 * b + 0.3 * c <= 11.7, then: 0.3 * y - 0.7 * w <= 0.7}
"""
GRID = """
inputs: {x: [0, 1]}
outputs: {a: {integer: true}, b: {step: 0.01}}
rules: [{name: sum, then: a + b <= 4}, {name: range, then: 0 <= a <= 3 and 0 <= b <= 3}]
"""


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


def _box() -> BoxAttacker:
    return BoxAttacker(boxes(quick=True)["oblique, at the limit"](), np.random.default_rng(0))


def _without_rules(count: int) -> Found:
    """Ask the plain network."""
    attacker = _box()
    X = attacker.facets(count, np.float32)
    Y = _plain(attacker.spec)(X)
    yield attacker.subject.judge, Batch(X, X, Y, Y, "torch")


def _gate_without_slack(count: int) -> Found:
    """Ask certified heads whose oblique rows are compared in plain float32: Q x <= q."""
    attacker = _box()
    subject, program = attacker.subject, BoxAgain(attacker.subject.certificate, slack=False)
    assert subject.model is not None
    for dtype in (np.float32, np.float64):
        X = attacker.borders(count // 2, dtype)
        Z = subject.model(X) * 10
        yield subject.judge, Batch(X, X, Z, program(X, Z), "NumPy")


def _projected(count: int) -> Found:
    """Project the plain network where the rule is active, decided exactly: y - g max(0, g.y - h) / |g|^2 in float32."""
    spec = Specification.from_yaml(ONE_HALF_SPACE)
    judge, plain = Judge(spec), _plain(spec)
    X = _box().facets(count, np.float32)
    y = plain(X)
    g, h = np.array([0.3, -0.7], dtype=np.float32), np.float32(0.7)
    ((_, active),) = judge.active(X)
    excess = np.maximum(y @ g - h, np.float32(0)) * active.astype(np.float32)
    yield judge, Batch(X, X, y, y - (excess / (g @ g))[:, None] * g, "NumPy")


def _half_precision(count: int) -> Found:
    """Compute everything behind the backbone of a certified model in bfloat16, as autocast would."""

    def order(A: Array, v: Array, b: Array) -> Array:
        parts = [torch.tensor(part).to(torch.bfloat16) for part in (A, v, b)]
        total = torch.einsum("rkn,rn->rk", parts[0].expand(len(v), -1, -1), parts[1]) + parts[2]
        result: Array = total.float().numpy()
        return result

    attacker = _box()
    X = attacker.facets(count // 10, np.float32)
    Z = attacker.corners(X)
    program = BoxAgain(attacker.subject.certificate, order)
    yield attacker.subject.judge, Batch(X, X, Z, program(X, Z), "bfloat16")


def _moved_bias(count: int) -> Found:
    """Move one bias of a box by a ten-thousandth behind the certificate's back; ask it in every mode of torch."""
    attacker = _box()
    network: Any = copy.deepcopy(attacker.subject.network)
    network.backbone, tensors = Passes(), attacker.program.tensors
    off = {**tensors, "heads.bias": tensors["heads.bias"] + np.float32(1e-4)}
    network.head.served.program = Box(attacker.program.ops, off)
    for batch in in_modes(network, attacker.zeros, count, attacker.rng):
        yield attacker.subject.judge, batch


def _check_without_slack(count: int) -> Found:
    """Compare the sums of ramps with what the rules state."""
    attacker = RulesAttacker(stated("ramps", RULES["ramps"]), np.random.default_rng(0))
    program = RulesAgain(attacker.subject.certificate, slack=False)
    for size, dtype in chunks(count, attacker.chunk):
        X, Z = attacker.mixture(size, dtype)
        yield attacker.subject.judge, Batch(X, X, Z, program(X, Z), "NumPy")


def _clips_by_hand(count: int) -> Found:
    """Clip to the limits of the bank in float32."""
    attacker = RulesAttacker(stated("limits", RULES["limits"]), np.random.default_rng(0))
    certificate = attacker.subject.certificate
    limits = limits_of(smle_check.StatedSpecification(certificate.document["specification"], certificate.block))
    for size, _ in chunks(count, attacker.chunk):
        X = attacker.inputs(size, np.float32)
        Y = attacker.aimed(X)
        for limit in limits:
            slope = np.zeros(X.shape[1], dtype=np.float32)
            for k, value in limit.slope.items():
                slope[k] = float(value)
            end = X @ slope + np.float32(Fraction(limit.offset))
            own = Y[:, limit.output]
            Y[:, limit.output] = np.maximum(own, end) if limit.side > 0 else np.minimum(own, end)
        yield attacker.subject.judge, Batch(X, X, Y, Y, "NumPy")


class _Compared(nn.Module):
    """Computes something behind a head: where served and given answers compare as equal, the given ones are kept."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, *inputs: Tensor) -> Tensor:
        (answers,) = inputs
        served: Tensor = self.network(features, answers)
        return torch.where(served == answers, answers.to(served.dtype), served)


def _compared(count: int) -> Found:
    """Compare behind a head of whole numbers: where torch flushes, tiny numbers are equal to 0."""
    spec = Specification.from_yaml(GRID)
    subject = Subject("compared", "grid", "", spec, certify_head(spec), np.ones(2))
    attacker = GridAttacker(subject, np.random.default_rng(0))
    network = _Compared(SafeNetwork.of(Passes(), spec, subject.certificate))
    for batch in in_modes(network, attacker.zeros, count, attacker.rng):
        yield subject.judge, batch


def _misplaced(count: int) -> Found:
    """Serve sequences with the features of the position before."""
    judge = Judge(Specification.from_yaml(SEQUENCES))
    for batch in misplaced(count, seed=0):
        yield judge, batch


UNSAFE: dict[str, Callable[[int], Found]] = {
    "an uncertified network": _without_rules,
    "a plain float32 gate, without slack": _gate_without_slack,
    "a float32 projection layer": _projected,
    "a certified head run in bfloat16": _half_precision,
    "a bias of a box moved by a ten-thousandth, in torch": _moved_bias,
    "the check of rules without slack (ramps)": _check_without_slack,
    "limits as clips in float32, by hand (limits of the bank)": _clips_by_hand,
    "a comparison behind a head of whole numbers, in torch": _compared,
    "features of the position before (sequences)": _misplaced,
}
"""Name -> function of the number of points that yields batches with their judges."""
