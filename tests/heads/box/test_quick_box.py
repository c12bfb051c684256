"""The quick form of a box answers as its operations do one by one: the same head at every border, the same sums."""

from __future__ import annotations

import numpy as np
import pytest

from smle.heads.box import quick_box
from smle.heads.box.box_program import Box
from smle_check.program import Comparison, Gate, box, gated

FORMATS = (np.float32, np.float64)
COLUMNS = 3
BORDERS = np.array([-1, -0.5, 0, 0.25, 2])  # in both formats the same numbers
GATES = [  # regions, certified heads, and whether there is a free one
    (0, 1, False), (0, 0, True), (1, 1, True), (1, 2, False), (3, 3, True), (6, 7, True), (8, 30, True),
    (14, 20, False), (70, 40, True),
]  # fmt: skip
BOXES = [  # clip, bounds, and whether heads see the inputs
    ("clamp", "constant", False), ("where", "constant", True), ("where", "affine", False), ("where", "network", True),
]  # fmt: skip
CASES = [(*gate, *box) for gate in GATES for box in BOXES if gate[1] or box[0] == "where"]  # NaN needs a safe answer
STRANGE = [np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, -1e-45, 2.0**-126, 1e30, -1e30]


def made(seed: int, *, regions: int, heads: int, free: bool, clip: str, bounds: str, passthrough: bool) -> Box:
    """Return a random program; nothing is proved of it."""
    rng = np.random.default_rng(seed)
    n, m, k = int(rng.integers(1, 7)), int(rng.integers(1, 5)), 4
    comparisons = tuple(
        Comparison(int(rng.integers(COLUMNS)), bool(rng.integers(2)), bool(rng.integers(2))) for _ in range(5)
    )
    # Two products with powers of two are exact, so that no order of summation moves the border.
    coefficients = np.array([[1.0, -2, 0], [0, 0.5, 0.5]])
    rows = len(comparisons) + len(coefficients)
    members = [tuple(sorted(rng.choice(rows, size=rng.integers(1, 3), replace=False))) for _ in range(regions)]
    if regions > 1 and seed % 3 == 0:
        members[-1] = ()
    gate = Gate(comparisons, len(coefficients), tuple(members)) if regions else Gate((), 0, ())
    constants = rng.choice(BORDERS[1:-1], size=len(comparisons))
    stored = {"gate.coefficients": coefficients, "gate.thresholds": rng.choice(BORDERS[1:-1], size=2)}
    for kind in FORMATS:
        name = np.dtype(kind).name
        stored |= {
            f"domain.lower_{name}": np.full(COLUMNS, -1, kind),
            f"domain.upper_{name}": np.full(COLUMNS, 2, kind),
        }
        stored[f"gate.constants_{name}"] = constants.astype(kind)
    certified = heads
    if regions:  # signatures of what there is, but not of everything
        found = np.unique(Box(gated(gate), stored).bits_of(hostile(np.float64, 500, 1, seed)[0]), axis=0)
        stored["gate.signatures"] = rng.permutation(found)[: heads + free].astype(np.uint8)
        certified = len(stored["gate.signatures"]) - free
    tensors = {
        "bounds.lower": rng.normal(size=n) - 1,
        "bounds.upper": rng.normal(size=n) + 1,
        "heads.weight": rng.normal(size=(certified, m, n)),
        "heads.bias": rng.normal(size=(certified, m)),
    }
    width = COLUMNS
    if bounds == "network":
        tensors |= {"bounds.hidden.0.weight": rng.normal(size=(k, COLUMNS)), "bounds.hidden.0.bias": rng.normal(size=k)}
        tensors |= {"bounds.hidden.1.weight": rng.normal(size=(k, k)), "bounds.hidden.1.bias": rng.normal(size=k)}
        width = k
    if bounds != "constant":
        tensors |= {f"bounds.{end}_slope": rng.normal(size=(n, width)) for end in ("lower", "upper")}
    if passthrough:
        tensors["heads.passthrough"] = rng.normal(size=(certified, m, COLUMNS))
    if clip == "clamp":
        tensors["heads.fallback"] = rng.normal(size=(certified, m))
    if free:
        tensors |= {"free.weight": rng.normal(size=(m, n)), "free.bias": rng.normal(size=m)}
    tensors = stored | {name: value.astype(np.float32) for name, value in tensors.items()}
    return Box(box(gate, clip, bounds, tensors), tensors)


def hostile(kind: type, rows: int, units: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features on and beside borders, and embeddings with NaN and infinities."""
    rng = np.random.default_rng(seed)
    borders = BORDERS.astype(kind)
    near = np.concatenate([borders, np.nextafter(borders, kind(-9)), np.nextafter(borders, kind(9)), STRANGE])
    x, z = rng.uniform(-1.5, 2.5, size=(rows, COLUMNS)), 2 * rng.normal(size=(rows, units))
    x = np.where(rng.uniform(size=x.shape) < 0.6, rng.choice(near, size=x.shape), x)
    z = np.where(rng.uniform(size=z.shape) < 0.1, rng.choice(STRANGE, size=z.shape), z)
    return x.astype(kind), z.astype(np.float32)


def require_same(program: Box, features: np.ndarray, z: np.ndarray) -> None:
    """Compare the quick form with the operations, by the error that float32 sums may have."""
    values = program.values(features, z)
    wanted, found = values[program.ops[-1].out], program(features, z)
    assert found.dtype == np.float32
    assert found.shape == wanted.shape
    tensors, cell = program.tensors, values.get("cell", np.zeros(len(z), dtype=int))
    certified = cell < len(tensors["heads.weight"])
    largest = np.abs(tensors["heads.weight"]).sum(axis=2).max(initial=0)
    reach = np.where(certified, 1 + np.abs(values["clipped"]).max(axis=1), 1 + np.abs(z).max(axis=1))
    scale = 30 * (1 + largest + np.abs(tensors.get("free.weight", 0)).sum()) * reach
    with np.errstate(invalid="ignore"):
        close = (
            (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | (np.abs(found - wanted) <= 2e-6 * scale[:, None])
        )
    assert close.all(), (found[~close], wanted[~close])
    if "heads.fallback" in tensors:  # served bit by bit
        lost = certified & np.isnan(values["y"]).any(axis=1)
        assert np.array_equal(found[lost], tensors["heads.fallback"][cell[lost]])
    assert np.isfinite(found[certified]).all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("regions", "heads", "free", "clip", "bounds", "passthrough"), CASES)
def test_quick_answers_are_those_of_the_operations(regions, heads, free, clip, bounds, passthrough, kind, monkeypatch):
    for small in (False, True):
        if small:  # several passes, and rows grouped by head
            monkeypatch.setattr(quick_box, "_NUMBERS", 64)
            monkeypatch.setattr(quick_box, "_MOST_FETCHED", 4)
        for seed in range(2):
            program = made(
                seed, regions=regions, heads=heads, free=free, clip=clip, bounds=bounds, passthrough=passthrough
            )
            seen = set()
            for rows in (1, 30, 64, 300) if small else (*range(65), 300):
                features, z = hostile(kind, rows, program.width, seed + 7 * rows)
                require_same(program, features, z)
                seen |= set(program.cell_of(features).tolist())
            assert len(seen) >= 0.7 * program.heads


def test_one_head_for_all_rows_of_a_batch():
    program = made(1, regions=1, heads=1, free=True, clip="clamp", bounds="constant", passthrough=False)
    features, z = hostile(np.float32, 800, program.width, 0)
    for cell in (0, 1):
        own = program.cell_of(features) == cell
        assert own.sum() > 16
        for rows in (1, 2, 16, int(own.sum())):
            require_same(program, features[own][:rows], z[own][:rows])


def test_rows_and_columns_must_fit():
    program = made(0, regions=1, heads=1, free=True, clip="clamp", bounds="constant", passthrough=False)
    features, z = hostile(np.float32, 5, program.width, 0)
    for x, embedding in ((features[:4], z), (features[:, :2], z), (features, z[:, :-1]), (features[0], z[0])):
        with pytest.raises(ValueError, match="Expected features of shape"):
            program(x, embedding)


def test_embeddings_of_other_formats_are_cast():
    program = made(0, regions=1, heads=1, free=True, clip="clamp", bounds="constant", passthrough=False)
    features, z = hostile(np.float64, 50, program.width, 0)
    wide = z.astype(np.float64)
    wide[0] = 1e300
    assert np.array_equal(program(features, wide)[1:], program(features, z)[1:], equal_nan=True)
    assert np.isfinite(program(features, wide)[program.cell_of(features) == 0]).all()
