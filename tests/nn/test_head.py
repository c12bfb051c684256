"""The deployed program against a slow reference that follows the definitions row by row."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from smle.guarantees.regions.search import find_cells
from smle.nn import clip as clip_module
from smle.nn import head as head_module
from smle.nn.box_network import BoxNetwork
from smle.nn.clip import clip
from smle.nn.head import DeployedHead
from smle.rules import Specification
from support.safe_networks import BRAKING, DOSE, SPECIFICATIONS, make_network, make_rows, safe_network
from support.sampling import Judge, hard_points

BOUNDS = ("fixed", "affine")


def reference(network: BoxNetwork, features: Tensor, z: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs in float64 by the definitions, and a bound on the rounding of the float32 program."""
    head = network.deployed
    over = head.frozen_heads()
    rows, errors = [], []
    for x, e in zip(features, z, strict=True):
        kind = "float64" if x.dtype == torch.float64 else "float32"
        low, high = (getattr(head.domain, f"{end}_{kind}").double().numpy() for end in ("lower", "upper"))
        v = x.double().numpy()
        v = np.where(v >= low, v, low)
        v = np.where(v <= high, v, high)
        cell = cell_of(head, v, kind)
        e64 = e.double().numpy()
        if head.free is not None and cell == len(head.heads.weight):
            weight, bias = (p.double().numpy() for p in (head.free.weight, head.free.bias))
            with np.errstate(invalid="ignore"):
                rows.append(weight @ e64 + bias)
            errors.append(1e-5 * (np.abs(weight) @ np.abs(e64) + np.abs(bias)))
            continue
        serving = over.heads[cell]
        assert serving is not None
        v32 = v.astype(np.float32).astype(np.float64)
        box = {name: value.double().numpy() for name, value in head.bounds.named_buffers()}
        lower, upper = box["lower"], box["upper"]
        if "lower_slope" in box:
            lower, upper = lower + box["lower_slope"] @ v32, upper + box["upper_slope"] @ v32
        if np.isnan(e64).any() and not head.nan_safe_clip:
            rows.append(serving.fallback.astype(np.float64))
            errors.append(np.zeros(len(serving.b)))
            continue
        c = np.where(e64 >= lower, e64, lower)
        c = np.where(c <= upper, c, upper)
        y = serving.W.astype(np.float64) @ c + serving.b
        size = np.abs(serving.W) @ np.maximum(np.abs(lower), np.abs(upper)) + np.abs(serving.b)
        if serving.V is not None:
            y = y + serving.V.astype(np.float64) @ v32
            size = size + np.abs(serving.V) @ np.abs(v32)
        rows.append(y)
        errors.append(1e-5 * size + 1e-6)
    return np.array(rows), np.array(errors)


def cell_of(head: DeployedHead, v: np.ndarray, kind: str) -> int:
    """Return the cell of one input by the definition of the gate (oblique rows: away from their facets)."""
    gate = head.gate
    constants = getattr(gate, f"constants_{kind}").double().numpy()
    outside = np.zeros(gate.signatures.shape[1], dtype=bool)
    signs = [-1.0 if turned else 1.0 for turned in gate.negative.tolist()]
    for row, (column, sign) in enumerate(zip(gate.columns.tolist(), signs, strict=True)):
        if not sign * v[column] <= constants[row]:
            outside |= gate.comparison_regions[row].bool().numpy()
    above = gate.coefficients.numpy() @ v.astype(np.float64) > gate.thresholds.numpy()
    for row in np.flatnonzero(above):
        outside |= gate.oblique_regions[row].bool().numpy()
    active = (~outside).astype(np.uint8).tolist()
    signatures = gate.signatures.tolist()
    return signatures.index(active) if active in signatures else gate.most_constrained


def embeddings(count: int, width: int, *, seed: int) -> Tensor:
    """Return embeddings inside and far outside the box, with NaN and infinity in some rows."""
    z = 2 * torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    z[3, 1], z[5, 0], z[6, 2], z[7] = torch.nan, torch.inf, -torch.inf, torch.nan
    return z


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPECIFICATIONS)
@pytest.mark.parametrize("eager", [True, False])
def test_program_equals_reference(
    name: str, bounds: str, dtype: torch.dtype, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not eager:  # what compilers and exporters see
        for module in (clip_module, head_module):
            monkeypatch.setattr(module, "eager", lambda tensor: False)
    spec = SPECIFICATIONS[name]
    network = make_network(spec, bounds=bounds).eval()
    features, _ = make_rows(spec, 64)
    features = features.to(dtype)
    features[9, 0], features[10, 1], features[11, 0], features[12, 1] = torch.nan, torch.nan, 1e6, -1e6
    z = embeddings(64, 8, seed=1)
    expected, errors = reference(network, features, z)
    with torch.no_grad():
        together = network.deployed(features, z)
        apart = torch.cat([network.deployed(features[i : i + 1], z[i : i + 1]) for i in range(64)])
    for outputs in (together, apart):
        got = outputs.double().numpy()
        assert got.shape == expected.shape
        with np.errstate(invalid="ignore"):
            same = (np.isnan(got) & np.isnan(expected)) | (np.abs(got - expected) <= errors) | (got == expected)
        assert same.all(), (got[~same.all(axis=1)], expected[~same.all(axis=1)])


@pytest.mark.parametrize("name", ["braking", "one rule", "oblique"])
def test_gate_answers_the_same_for_one_row_and_for_many(name: str) -> None:
    spec = SPECIFICATIONS[name]
    head = make_network(spec).eval().deployed
    for dtype in (np.float32, np.float64):
        for points in hard_points(spec, np.random.default_rng(0), 300, dtype=dtype):
            x = torch.tensor(points)
            many = head.gate(head.domain(x)).tolist()
            assert [head.gate.cell_of(row[None], head.domain) for row in x] == many


BANDS = {
    "band": "x0 <= 0.5 and x0 >= -0.25 and x1 < 0.1",
    "above": "x0 > 0.5",
    "below": "x1 <= -0.3",
    "edges": "x0 <= 1 and x1 >= -1 and x0 >= 1",
    "everything": "x0 <= 1 and x1 >= -1",
    "columns": " and ".join(f"x{i} >= -0.9" for i in range(8)),
}


@pytest.mark.parametrize("when", BANDS.values(), ids=BANDS)
def test_comparing_columns_one_by_one_answers_as_clamped_inputs_do(when: str) -> None:
    inputs = "\n".join(f"  x{i}: [-1, 1]" for i in range(8))
    spec = Specification.from_yaml(
        f"inputs:\n{inputs}\noutputs: [y]\nrules:\n  - name: r\n    when: {when}\n    then: y <= 1\n"
    )
    head = make_network(spec).eval().deployed
    odd = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1e-42, 1.0, -1.0, 0.5, -0.3]
    outside = np.array([[a, b, *[0.0] * 6] for a in odd for b in odd])
    seen = set()
    for dtype in (np.float32, np.float64):
        for points in (*hard_points(spec, np.random.default_rng(0), 300, dtype=dtype), outside.astype(dtype)):
            x = torch.tensor(points)
            found = head.gate.inside_at(x, head.domain)
            seen.add(found is None)
            if found is not None:
                assert torch.equal(found, head.gate.inside(head.domain(x)))
    assert len(seen) == 1
    assert seen.pop() == ("x7" in when or when == BANDS["everything"])


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_rules_hold_at_hard_points_for_any_embedding(name: str, bounds: str) -> None:
    spec = SPECIFICATIONS[name]
    head, judge = safe_network(spec, bounds=bounds).deployed, Judge(spec)
    generator = torch.Generator().manual_seed(2)
    for points in hard_points(spec, np.random.default_rng(1), 2000):
        z = 100 * torch.randn(len(points), 8, generator=generator)
        with torch.no_grad():
            outputs = head(torch.tensor(points), z).numpy()
            rows = range(0, len(points), 20)  # one at a time, which takes another way
            single = [head(torch.tensor(points[i : i + 1]), z[i : i + 1]).numpy() for i in rows]
        assert judge.violations(points, outputs) == []
        assert judge.violations(points[rows], np.concatenate(single)) == []


def test_clip_is_the_double_where() -> None:
    z = torch.tensor([[-5.0, 0.5, 7.0, torch.nan, torch.inf], [0.0, 0.0, 0.0, 0.0, -torch.inf]])
    lower, upper = torch.tensor([-1.0, 0.0, 2.0, -3.0, 1.0]), torch.tensor([1.0, 1.0, 1.0, 3.0, 2.0])
    expected = torch.tensor([[-1.0, 0.5, 1.0, -3.0, 2.0], [0.0, 0.0, 1.0, 0.0, 1.0]])
    assert torch.equal(clip(z, lower, upper), expected)
    assert torch.equal(clip(z[1:], lower, upper), expected[1:])


def test_clip_has_the_gradient_of_the_double_where(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    for eager in (True, False):
        monkeypatch.setattr(clip_module, "eager", lambda tensor, eager=eager: eager)
        z = torch.linspace(-2, 2, 9).reshape(1, 9).requires_grad_()
        lower, upper = torch.full((9,), -1.0, requires_grad=True), torch.full((9,), 1.0, requires_grad=True)
        (clip(z, lower, upper) * torch.arange(9)).sum().backward()
        gradients.append((z.grad, lower.grad, upper.grad))
    for fast, slow in zip(*gradients, strict=True):
        assert torch.equal(fast, slow)


def test_autocast_does_not_reach_the_head() -> None:
    network = make_network(BRAKING).eval()
    features, _ = make_rows(BRAKING, 32)
    z = torch.randn(32, 8)
    with torch.no_grad():
        plain = network.deployed(features, z)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(network.deployed(features, z), plain)
            assert network.train()(features).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reach_a_single_row(dtype: torch.dtype) -> None:
    network = make_network(BRAKING).eval()
    features, _ = make_rows(BRAKING, 64)
    z = 1e3 * torch.randn(64, 8)
    with torch.no_grad():
        network.deployed.heads.weight.mul_(1e6)  # beyond the range of float16
        for i in range(64):
            plain = network.deployed(features[i : i + 1], z[i : i + 1])
            with torch.autocast("cpu", dtype=dtype):
                assert torch.equal(network.deployed(features[i : i + 1], z[i : i + 1]), plain)


def _set_legacy() -> None:
    torch.set_float32_matmul_precision("medium")


def _set_backend() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def _set_everything() -> None:
    torch.backends.fp32_precision = "tf32"


@pytest.mark.parametrize("lower", [_set_legacy, _set_backend, _set_everything])
@pytest.mark.parametrize("rows", [1, 5])
def test_lowered_precision_is_refused(lower: object, rows: int) -> None:
    network = make_network(DOSE).eval()
    features, _ = make_rows(DOSE, rows)
    old = torch.backends.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    old_cuda = torch.backends.cuda.matmul.fp32_precision
    try:
        lower()  # type: ignore[operator]
        with pytest.raises(RuntimeError, match="full float32 precision"):
            network(features)
    finally:
        torch.backends.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = old
        torch.backends.cuda.matmul.fp32_precision = old_cuda
    network(features)


def moved_heads(network: BoxNetwork, how: str) -> BoxNetwork:
    """Use a single row, copy, and change the stored heads."""
    features, _ = make_rows(BRAKING, 4)
    with torch.no_grad():
        network(features[:1])
    if how == "pickle":
        network = pickle.loads(pickle.dumps(network))
    elif how == "deepcopy":
        network = copy.deepcopy(network)
    heads = network.deployed.heads
    with torch.no_grad():
        if how == "data":
            heads.weight.data, heads.bias.data = 2 * heads.weight.data, heads.bias.data + 1
        elif how == "state":
            state = network.state_dict()
            changed = {
                k: v + 1 if k in ("deployed.heads.weight", "deployed.heads.bias") else v for k, v in state.items()
            }
            network.load_state_dict(changed, assign=True)
        else:
            heads.weight.mul_(2)
            heads.bias.add_(1)
    return network


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "data", "state", "in place"])
def test_a_single_row_follows_the_stored_heads(how):
    network = make_network(BRAKING).eval()
    features, _ = make_rows(BRAKING, 32)
    with torch.no_grad():
        before = network(features)
        network = moved_heads(network, how)
        batch = network(features)
        single = torch.cat([network(row.unsqueeze(0)) for row in features])
    assert not torch.allclose(batch, before, atol=0.1)
    torch.testing.assert_close(single, batch)


def test_as_many_embeddings_as_features():
    network = make_network(BRAKING).eval()
    features, _ = make_rows(BRAKING, 3)
    with torch.no_grad():
        z = network.backbone(features)
        for rows in (1, 2):
            with pytest.raises(ValueError, match="one row per embedding"):
                network.deployed(features, z[:rows])
            with pytest.raises(ValueError, match="one row per embedding"):
                network.deployed(features[:rows], z)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns about parts of torch
def test_rows_of_features_and_embedding_are_compared_under_compilers_too():
    spec = Specification.from_yaml(
        "inputs: {a: [0, 1]}\noutputs: [y]\nrules:\n"
        "  - {name: low, when: a <= 0.3, then: y >= 0}\n  - {name: high, when: a >= 0.2, then: y <= 1}\n"
    )
    head = DeployedHead(spec, find_cells(spec), embedding=4)
    compiled = torch.compile(head, backend="eager")
    with pytest.raises(ValueError, match="one row per embedding"):
        compiled(torch.zeros(3, 1), torch.zeros(2, 4))
