"""Algorithm 2: what its runs report, and what happens where one fails."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smle.errors import NotCertifiedError
from smle.heads.box.algorithms.projection import HeadResult
from smle.heads.box.network.assurance import verify
from smle.heads.box.training import enforcement as module
from smle.heads.box.training.enforcement import PDCG
from smle.training.loop import TrainingOptions, train
from support.safe_networks import BRAKING, EVERYWHERE, make_network, make_rows, squared

QUICK = TrainingOptions(max_epochs=3, batch_size=64, learning_rate=1e-2, verbose=False)


def test_a_run_that_leaves_a_counterexample_is_finished_exactly() -> None:
    network = make_network(BRAKING)
    enforcement = PDCG(iterations=1)
    enforcement.start(network)
    with torch.no_grad():
        network.heads.raw_weight.mul_(100.0)
    enforcement.finish(network)
    assert any(not run.succeeded and "each of 1 iterations" in run.reason for run in enforcement.final)
    assert verify(network).hold


def test_where_nothing_is_found_the_updated_weights_are_kept_and_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "nearest_safe_head", lambda *_, **__: HeadResult(None, reason="injected"))
    network = make_network(BRAKING)
    enforcement = PDCG(iterations=1)
    enforcement.start(network)
    with torch.no_grad():
        network.heads.raw_weight.mul_(100.0)
    before = [head.W for head in network.frozen_heads().heads if head is not None]
    with pytest.raises(NotCertifiedError, match="injected"):
        enforcement.finish(network)
    network.train()
    after = [head.W for head in network.frozen_heads().heads if head is not None]
    for old, new, run in zip(before, after, enforcement.final, strict=True):
        assert not np.array_equal(old, new)
        np.testing.assert_allclose(new, run.head.W, rtol=1e-5, atol=1e-5)


def test_every_run_is_in_the_history() -> None:
    network = make_network(EVERYWHERE)
    X, y = make_rows(EVERYWHERE, 300)
    history = train(network, X, y, loss=squared, options=QUICK, enforcement=PDCG())
    runs = history.projections
    steps = -(-240 // 64) * 3  # a fifth of the rows is held out
    assert runs["step"] == [*range(1, steps + 1), 0]
    assert set(runs["head"]) == {0}
    for succeeded, iterations, strength in zip(runs["succeeded"], runs["iterations"], runs["strength"], strict=True):
        assert (strength > 0) == (iterations > 0)
        assert succeeded or iterations
    assert runs["succeeded"][-1]
    assert all(seconds > 0 for seconds in runs["seconds"])
    assert history.success_rate == pytest.approx(np.mean(runs["succeeded"]))


@pytest.mark.parametrize("kept", [True, False])
def test_the_memory_lasts_over_the_steps_or_not(kept: bool) -> None:
    network = make_network(BRAKING)
    one, two = PDCG(memory=4, keep_memory=kept), PDCG(memory=4)
    for enforcement in (one, two):
        enforcement.start(network)
    with torch.no_grad():
        network.heads.raw_weight.mul_(10.0)
    for step in range(1, 4):
        one.after_step(network, step)
    two.load_state(one.state())
    assert bool(one.state()) == kept
    assert one.state().keys() == two.state().keys()
    for name, value in one.state().items():
        np.testing.assert_array_equal(two.state()[name], value)


def test_projections_that_take_long_say_so_and_end_at_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_SLOW", 0.0)
    network = make_network(EVERYWHERE)
    slow = PDCG()
    slow.start(network)
    slow.after_step(network, 1)
    slow.after_step(network, 2)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["pdcg"]
    limited = PDCG(time_limit=1e-9)
    limited.start(network)
    with pytest.raises(NotCertifiedError, match=r"1 heads took .* first 1 steps.*SafeRegressor.*time limit"):
        limited.after_step(network, 1)
    with pytest.raises(ValueError, match="time_limit"):
        PDCG(time_limit=0.0)


def test_unknown_costs_are_refused() -> None:
    with pytest.raises(ValueError, match="squared, absolute"):
        PDCG(cost="cubic")
