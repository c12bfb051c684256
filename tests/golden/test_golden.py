"""Golden answers: models built of plain files answer as they did, within what the checker grants their rounding."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from smle.rules import Choice, Label
from support.exported import columns_of
from support.golden_models import NAMES, Golden, answered, asked, built, embedded, exported, fed, in_numpy, read

EXPORTABLE = [name for name in NAMES if "bounds.hidden.0.weight" not in read(name).tensors]
TENSORS = [(name, tensor) for name in NAMES for tensor in read(name).tensors if tensor != "heads.at"]
CONSTANTS = [
    ("one-region", "a <= {}", "0.1"),
    ("one-region", "b >= {}", "-0.3"),
    ("many-comparisons", "b > {}", "-0.9"),
    ("many-comparisons", "c < {}", "0.9"),
    ("many-comparisons", "e >= {}", "-4.1"),
    ("cells", "b >= {}", "0.2"),
    ("cells", "c > {}", "6"),
    ("affine", "b > {}", "0.4"),
    ("network", "a >= {}", "0.6"),
    ("moving-limits", "speed >= {}", "20.1"),
    ("table", "speed > {}", "10"),
    ("corrected", "a >= {}", "0.2"),
    ("corrected-labels", "b <= {}", "0.4"),
]


def groups_of(golden: Golden, *, with_backbone: bool) -> list[str]:
    return [group for group, rows in golden.rows.items() if (rows.embedding is None) == with_backbone]


def noticed(golden: Golden) -> bool:
    """Whether some answer in torch is off by more than its margin."""
    for with_backbone in (False, True):
        network = built(golden, with_backbone=with_backbone)
        for group in groups_of(golden, with_backbone=with_backbone):
            if golden.rows[group].wrong(answered(network, golden.rows[group])):
                return True
    return False


def test_there_are_models_of_all_kinds():
    tensors = [read(name).tensors for name in NAMES]
    assert len(NAMES) >= 12
    for part in ("heads.passthrough", "heads.fallback", "heads.at", "free.weight", "bounds.lower_slope"):
        assert 0 < sum(part in own for own in tensors) < len(tensors)
    for name in NAMES:
        rows = read(name).rows
        assert {"float32", "float64", "backbone"} <= set(rows)
        assert rows["float64"].features.dtype == np.float64
        assert np.isnan(rows["float32"].embedding).any()
        for own in rows.values():  # margins are those of rounding
            assert (own.margins <= 1e-5 * np.maximum(1, np.abs(own.answers).max())).all()


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_torch_answers_as_stored(name, one_by_one):
    golden = read(name)
    for with_backbone in (False, True):
        network = built(golden, with_backbone=with_backbone)
        for group in groups_of(golden, with_backbone=with_backbone):
            rows = golden.rows[group]
            assert not rows.wrong(answered(network, rows, one_by_one=one_by_one)), group


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_numpy_answers_as_stored(name, one_by_one):
    golden = read(name)
    program = in_numpy(built(golden, with_backbone=False))
    for group, rows in golden.rows.items():
        embedding = embedded(golden, rows.features) if rows.embedding is None else rows.embedding
        if one_by_one:
            pairs = zip(rows.features, embedding, strict=True)
            found = np.concatenate([program(x[None], z[None]) for x, z in pairs])
        else:
            found = program(rows.features, embedding)
        assert not rows.wrong(found), group


@pytest.mark.parametrize("name", EXPORTABLE)
def test_onnxruntime_answers_as_stored(name, tmp_path):
    golden = read(name)
    for with_backbone in (False, True):
        network = built(golden, with_backbone=with_backbone)
        running = exported(golden, network, tmp_path / "model.onnx", with_backbone=with_backbone)
        for group in groups_of(golden, with_backbone=with_backbone):
            if group == "float64":
                continue
            answers = asked(running, fed(golden, group))
            assert not golden.rows[group].wrong(columns_of(golden.spec, answers)), group
            require_decisions(golden, group, answers)


def require_decisions(golden: Golden, group: str, answers: dict[str, np.ndarray]) -> None:
    """Labels and choices are those of the stored answers, wherever margins leave no doubt."""
    rows, place = golden.rows[group], 0
    for item in golden.spec.outputs:
        width = len(item.options) if isinstance(item, Choice) else 1
        own, margins = (part[:, place : place + width] for part in (rows.answers, rows.margins))
        place += width
        if isinstance(item, Label):
            clear = np.abs(own) > margins
            assert ((answers[item.name] == (own > 0)) | ~clear).all()
        elif isinstance(item, Choice):
            own = own if item.pick == "max" else -own
            first, second = np.sort(own, axis=1)[:, ::-1][:, :2].T
            clear = first - second > 2 * margins.max(axis=1)
            chosen = np.array(item.options, dtype=object)[own.argmax(axis=1)]
            assert clear.any()
            assert ((answers[item.name][:, 0] == chosen) | ~clear).all()


@pytest.mark.parametrize(("name", "tensor"), TENSORS)
def test_a_changed_number_is_noticed(name, tensor):
    golden = read(name)
    changed = golden.tensors[tensor] * np.float32(1.001)
    assert (changed != golden.tensors[tensor]).any() or not golden.tensors[tensor].any()
    assert not changed.any() or noticed(replace(golden, tensors={**golden.tensors, tensor: changed}))


@pytest.mark.parametrize("direction", [-np.inf, np.inf])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "condition", "number"), CONSTANTS)
def test_a_border_that_moves_to_the_next_float_is_noticed(name, condition, number, kind, direction):
    golden = read(name)
    moved = Fraction(float(np.nextafter(kind(number), kind(direction))))
    digits = 80  # enough for every float near these
    text = f"{'-' if moved < 0 else ''}{int(abs(moved) * 10**digits):0{digits + 1}d}"
    rules = golden.rules.replace(condition.format(number), condition.format(f"{text[:-digits]}.{text[-digits:]}"))
    assert rules != golden.rules
    assert noticed(replace(golden, rules=rules))
