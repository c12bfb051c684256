"""The loop: what is kept, what stops it, what it accepts, and that a seed fixes everything."""

from __future__ import annotations

import io
import itertools
import logging
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from smle.errors import DataError, TrainingError
from smle.heads.box.network.assurance import verify
from smle.heads.box.training.enforcement import PDCG
from smle.nn import BoxNetwork, SafeNetwork
from smle.rules import Specification
from smle.training import quantile_loss
from smle.training.batches import Rows, split_rows
from smle.training.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from smle.training.loop import EpochInfo, History, TrainingOptions, train
from support.safe_networks import EVERYWHERE, make_network, make_rows, squared

X, Y = make_rows(EVERYWHERE, 240)


def options(**changes: object) -> TrainingOptions:
    defaults: dict[str, object] = {"max_epochs": 5, "batch_size": 32, "learning_rate": 1e-2, "verbose": False}
    defaults["schedule"] = None
    return TrainingOptions(**{**defaults, **changes})  # type: ignore[arg-type]


def safe(spec: Specification) -> SafeNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SafeNetwork(nn.Sequential(nn.Linear(2, 8), nn.ReLU()), spec, embedding=8)


def run(network: nn.Module | None = None, **arguments: object) -> tuple[nn.Module, History]:
    network = safe(EVERYWHERE) if network is None else network
    enforcement = "pdcg" if isinstance(network, BoxNetwork) else None
    settings = {"loss": squared, "options": options(), "enforcement": enforcement, **arguments}
    return network, train(network, X, Y, **settings)  # type: ignore[arg-type]


def weights(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])


WORSE = (X, -Y)  # validation rows on which training makes things worse


def validation_loss(network: nn.Module) -> float:
    with torch.no_grad():
        return float(squared(network.eval()(WORSE[0]), WORSE[1]).mean())


def test_seed_fixes_the_weights_and_nothing_else_is_touched() -> None:
    class Noisy(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(2, 8), nn.Dropout(0.3), nn.Linear(8, 6))

    results = []
    for seed, state in ((1, 5), (1, 6), (2, 5)):
        torch.manual_seed(0)
        network = BoxNetwork(Noisy(), EVERYWHERE, embedding=6)
        torch.manual_seed(state)
        before, threads = torch.get_rng_state(), torch.get_num_threads()
        run(network, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == threads
        results.append(weights(network))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_best_weights_are_restored() -> None:
    network, history = run(validation=WORSE)
    assert history.best == min(history.validation_loss)
    assert history.best_epoch < 4
    assert validation_loss(network) == pytest.approx(history.best, rel=1e-4)


def test_last_weights_are_kept_on_request() -> None:
    network, history = run(options=options(keep="last"), validation=WORSE)
    assert validation_loss(network) == pytest.approx(history.validation_loss[-1], rel=1e-4)
    assert history.validation_loss[-1] > history.best


def test_rows_held_out_are_those_of_the_seed() -> None:
    network, history = run(options=options(keep="last"), seed=7)
    _, held = split_rows(len(X), share=0.2, seed=7)
    assert len(held) == 48
    with torch.no_grad():
        value = float(squared(network(X[held]), Y[held]).mean())
    assert value == pytest.approx(history.validation_loss[-1], rel=1e-4)


def test_patience_ends_training() -> None:
    _, history = run(options=options(max_epochs=60, patience=3), validation=WORSE)
    assert history.stopped == "patience"
    assert len(history.loss) == history.best_epoch + 1 + 3
    _, history = run(options=options(max_epochs=4, patience=None))
    assert (history.stopped, len(history.loss)) == ("max_epochs", 4)


def test_callbacks_see_every_epoch_and_may_stop() -> None:
    seen: list[int] = []

    def watch(info: EpochInfo) -> bool:
        seen.append(info.epoch)
        assert len(info.history.validation_loss) == info.epoch + 1
        return info.epoch == 2

    _, history = run(callbacks=[watch])
    assert seen == [0, 1, 2]
    assert history.stopped == "callback"


def test_warm_start_has_no_rules_and_the_end_has() -> None:
    steps: list[tuple[bool, bool]] = []

    def watch(info: EpochInfo) -> None:
        assert isinstance(info.network, BoxNetwork)
        steps.append((info.warmup, verify(info.network).hold))

    network = make_network(EVERYWHERE)
    with torch.no_grad():
        network.heads.raw_weight.mul_(3.0)
    _, history = run(network, callbacks=[watch], options=options(warmup_epochs=2, max_epochs=3))
    assert history.warmup_epochs == 2
    assert [warm for warm, _ in steps] == [True, True, False, False, False]
    assert not steps[0][1]
    assert history.best_epoch >= 2
    assert verify(network).hold


def test_final_epochs_see_all_rows_and_are_kept() -> None:
    held = X[split_rows(len(X), share=0.2, seed=0)[1]]
    seen: list[tuple[bool, bool]] = []  # (a final epoch, a row that was held out was trained on)
    trained: list[Tensor] = []

    class Watching(SafeNetwork):
        def forward(self, x: Tensor, *others: Tensor) -> Tensor:
            if self.training:
                trained.append(x)
            return super().forward(x, *others)

    def watch(info: EpochInfo) -> None:
        rows = torch.cat(trained)
        seen.append((info.final, bool((rows[:, None] == held[:1]).all(dim=-1).any())))
        assert len(rows) == (240 if info.final else 192)
        trained.clear()

    network = safe(EVERYWHERE)
    network.__class__ = Watching
    settings = options(max_epochs=4, patience=1, final_epochs=3)
    _, history = run(network, options=settings)
    trained.clear()
    searched = len(history.loss) - 3
    assert history.final_epochs == 3
    assert history.best_epoch < searched
    assert history.learning_rate[searched] == pytest.approx(1e-3)
    assert history.learning_rate[-1] < 1e-3
    again = safe(EVERYWHERE)
    again.__class__ = Watching
    run(again, options=settings, callbacks=[watch])
    assert seen == [(False, False)] * searched + [(True, True)] * 3
    assert torch.equal(weights(network), weights(again))
    before, _ = run(safe(EVERYWHERE), options=options(max_epochs=4, patience=1))
    assert not torch.equal(weights(network), weights(before))


def test_final_epochs_start_from_the_best_weights() -> None:
    def nearly_still(parameters: object, rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-12 if rate < 5e-3 else rate)  # type: ignore[arg-type]

    best, before = run(validation=WORSE, options=options(optimizer=nearly_still))
    network, history = run(validation=WORSE, options=options(optimizer=nearly_still, final_epochs=2))
    last, _ = run(validation=WORSE, options=options(optimizer=nearly_still, keep="last"))
    assert history.loss[:-2] == before.loss
    torch.testing.assert_close(weights(network), weights(best), rtol=1e-6, atol=1e-9)
    assert float((weights(network) - weights(last)).abs().max()) > 1e-4


def test_final_epochs_keep_weights_of_rows() -> None:
    weight = torch.linspace(0.0, 2.0, len(X))
    _, history = run(sample_weight=weight, options=options(final_epochs=2), loss=lambda p, y: (p - y) ** 2)
    assert history.final_epochs == 2
    rows = Rows(X[:2], Y[:2], torch.tensor([0.5, 2.0])).joined(Rows(X[2:3], Y[2:3]))
    assert rows.weight is not None
    assert rows.weight.tolist() == [0.5, 2.0, 1.0]
    assert torch.equal(rows.inputs[0], X[:3])


def test_final_epochs_need_rows_in_memory() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=32)
    network = safe(EVERYWHERE)
    for data, validation in (((loader,), None), ((X, Y), loader)):
        with pytest.raises(ValueError, match="final_epochs"):
            train(network, *data, loss=squared, options=options(final_epochs=1), validation=validation)


def test_a_callback_ends_training_without_final_epochs() -> None:
    _, history = run(callbacks=[lambda info: info.epoch == 1], options=options(final_epochs=3))
    assert (len(history.loss), history.final_epochs, history.stopped) == (2, 0, "callback")
    _, history = run(callbacks=[lambda info: info.final], options=options(final_epochs=3))
    assert (len(history.loss), history.final_epochs, history.stopped) == (6, 1, "max_epochs")


def test_rules_are_enforced_in_final_epochs() -> None:
    class Counting(PDCG):
        steps, epochs = 0, 0

        def after_step(self, network: BoxNetwork, step: int) -> None:
            self.steps += 1
            super().after_step(network, step)

        def after_epoch(self, network: BoxNetwork) -> None:
            self.epochs += 1
            super().after_epoch(network)

    enforcement = Counting()
    network = make_network(EVERYWHERE)
    run(network, enforcement=enforcement, options=options(warmup_epochs=1, max_epochs=2, final_epochs=3))
    assert enforcement.epochs == 2 + 3
    assert enforcement.steps == 2 * 6 + 3 * 8  # 192 and 240 rows in batches of 32


def test_final_epochs_only_below_a_loss() -> None:
    _, plain = run()
    for limit, expected in ((plain.best, 0), (plain.best * 1.001, 2)):
        _, history = run(options=options(final_epochs=2, final_below=limit))
        assert history.final_epochs == expected


def test_schedule_and_optimizer_are_used() -> None:
    def momentum(parameters: object, rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9)  # type: ignore[arg-type]

    _, history = run(options=options(schedule="cosine", optimizer=momentum, learning_rate=0.1))
    expected = [0.1 * (1 + math.cos(math.pi * epoch / 5)) / 2 for epoch in range(5)]
    assert history.learning_rate == pytest.approx(expected)

    def plateau(optimizer: torch.optim.Optimizer) -> object:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)

    _, history = run(options=options(schedule=plateau))
    assert history.learning_rate[-1] < history.learning_rate[0]


def test_loader_takes_the_place_of_tensors() -> None:
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(X, Y), batch_size=48, shuffle=True, generator=generator)
    network = safe(EVERYWHERE)
    history = train(network, loader, loss=squared, options=options(), validation=(X, Y))
    assert history.validation_loss[-1] < history.validation_loss[0]
    history = train(safe(EVERYWHERE), [(X, Y)], loss=squared, options=options())  # a list of batches
    assert history.validation_loss == history.loss


def test_loaders_that_cannot_serve_are_refused() -> None:
    network = safe(EVERYWHERE)
    with pytest.raises(DataError, match="once per epoch"):
        train(network, iter([(X, Y)]), loss=squared, options=options())
    with pytest.raises(DataError, match=r"\(inputs, targets\)"):
        train(network, [X], loss=squared, options=options())
    with pytest.raises(TrainingError, match="No rows to train on"):
        train(network, [], loss=squared, options=options())
    with pytest.raises(DataError, match="same number of rows"):
        train(network, X, Y[:-1], loss=squared, options=options())


def test_weight_of_two_equals_a_row_twice() -> None:
    weight = torch.ones(len(X))
    weight[:40] = 2.0
    twice = torch.cat([torch.arange(len(X)), torch.arange(40)])
    settings = options(batch_size=1000, max_epochs=3)
    one, two = make_network(EVERYWHERE), make_network(EVERYWHERE)  # units of a SafeNetwork would differ
    train(one, X, Y, loss=squared, options=settings, sample_weight=weight, validation=(X, Y))
    train(two, X[twice], Y[twice], loss=squared, options=settings, validation=(X, Y))
    assert torch.allclose(weights(one), weights(two), atol=2e-4)
    with pytest.raises(ValueError, match="one value per row"):
        run(loss=lambda a, b: squared(a, b).mean(), sample_weight=weight)
    with pytest.raises(DataError, match="weights >= 0"):
        run(sample_weight=-weight)


def test_nan_loss_stops_with_a_clear_error() -> None:
    with pytest.raises(TrainingError, match=r"loss became nan in epoch 1, step 1.*learning_rate"):
        train(safe(EVERYWHERE), X, Y * torch.nan, loss=squared, options=options())


def test_progress_and_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=160)
    monkeypatch.setattr("smle.training.progress.Console", lambda **_: screen)
    with caplog.at_level(logging.INFO, logger="smle.training"):
        run(make_network(EVERYWHERE), options=options(verbose=True, max_epochs=2), title="my run")
    assert "my run: 2 epochs" in caplog.text
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    for part in ("my run", "loss ", "validation ", "margin "):
        assert part in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0),
        ("patience", 0),
        ("validation_fraction", 1.0),
        ("keep", "all"),
        ("schedule", "linear"),
        ("warmup_epochs", -1),
        ("final_epochs", -1),
        ("weight_decay", -1),
    ],
)
def test_bad_options_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        options(**{name: value})


# --- checkpoints in one process (those that are killed are in test_interruption)


@pytest.mark.parametrize(("made", "enforcement"), [(safe, None), (make_network, "pdcg")], ids=["safe", "box"])
@pytest.mark.parametrize("stop", [0, 2, 5, 6])
def test_run_goes_on_from_a_checkpoint(tmp_path: object, made: Any, enforcement: str | None, stop: int) -> None:
    def fresh() -> Any:
        return made(EVERYWHERE)

    class StopHereError(Exception):
        pass

    def interrupt(info: EpochInfo) -> None:
        if info.epoch == stop + 1:
            raise StopHereError

    path = tmp_path / "run" / "checkpoint"  # type: ignore[operator]
    common = {"enforcement": enforcement, "options": options(warmup_epochs=2, final_epochs=2, schedule="cosine")}
    whole, expected = run(fresh(), **common)
    with pytest.raises(StopHereError):
        run(fresh(), checkpoint=path, callbacks=[interrupt], **common)
    network, history = run(fresh(), checkpoint=path, **common)
    assert torch.equal(weights(network), weights(whole))
    assert history.loss == expected.loss
    again, history = run(fresh(), checkpoint=path, **common)  # finished: nothing is left to do
    assert torch.equal(weights(again), weights(whole))
    assert history.loss == expected.loss
    with pytest.raises(TrainingError, match=r"another run; these differ: (data, )?seed\."):
        run(fresh(), checkpoint=path, seed=3, **common)
    longer = {**common, "options": replace(common["options"], max_epochs=99)}
    with pytest.raises(TrainingError, match=r"another run; these differ: max_epochs\."):
        run(fresh(), checkpoint=path, **longer)
    stricter = EVERYWHERE.to_yaml().replace("<= 1", "<= 0.9", 1)
    assert stricter != EVERYWHERE.to_yaml()
    other = made(Specification.from_yaml(stricter + "\n"))
    with pytest.raises(TrainingError, match=r"another run; these differ: rules\."):
        run(other, checkpoint=path, **common)


def test_losses_by_name_find_what_they_are_named_for() -> None:
    y = torch.tensor([[0.0], [1.0], [2.0], [10.0]]).repeat(50, 1)
    wanted = {"squared_error": 3.25, "absolute_error": 1.5, "quantile": 1.5, "poisson": math.log(3.25)}
    for loss, expected in [*wanted.items(), (quantile_loss(0.9), 10.0)]:
        network = nn.Linear(1, 1, bias=False)
        settings = options(
            max_epochs=300, batch_size=200, learning_rate=0.2, schedule="cosine", patience=None, keep="last"
        )
        train(network, torch.ones(200, 1), y, loss=loss, options=settings, validation=(torch.ones(200, 1), y))
        low, high = (expected - 0.6, expected + 0.6) if loss in ("absolute_error", "quantile") else (expected,) * 2
        assert low - 0.1 <= float(network.weight.detach()) <= high + 0.1, loss


def test_a_loss_is_a_function_or_has_a_name() -> None:
    with pytest.raises(ValueError, match=r"'squared_error', .* or a function\. Got 'mse'"):
        train(nn.Linear(2, 1), torch.zeros(4, 2), torch.zeros(4, 1), loss="mse")
    with pytest.raises(TypeError, match="Expected loss to be a function"):
        train(nn.Linear(2, 1), torch.zeros(4, 2), torch.zeros(4, 1), loss=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile_loss(1.0)


def test_weight_decay_pulls_towards_zero() -> None:
    sizes = []
    for decay in (0.0, 1.0):
        network = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            network.weight.fill_(1.0)
        train(network, X, X, loss="squared_error", options=options(weight_decay=decay))
        sizes.append(float(network.weight.detach().abs().sum()))
    assert sizes[1] < sizes[0] - 0.1


def test_weight_decay_falls_with_the_validation_loss() -> None:
    made, seen = [], []

    def adam(parameters: Any, rate: float) -> torch.optim.Optimizer:
        made.append(torch.optim.AdamW(parameters, lr=rate))
        return made[-1]

    def look(info: EpochInfo) -> None:
        seen.append((made[-1].param_groups[0]["weight_decay"], info.history.best))

    chosen = options(weight_decay=2.0, decay_below=1e3, optimizer=adam)
    train(nn.Linear(2, 2), X, X, loss="squared_error", options=chosen, callbacks=[look])
    assert seen[0][0] == 2.0
    for (_, best), (decay, _) in itertools.pairwise(seen):
        assert decay == 2.0 * best / 1e3 < 2.0
    assert options(weight_decay=2.0).decay(1e-9) == 2.0


def test_checkpoints_are_whole_or_not_there(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"  # type: ignore[operator]
    write_checkpoint(Checkpoint({"a": {"x": torch.arange(3)}, "b": {}}, {"n": 1.5}), path)
    back = read_checkpoint(path)
    assert torch.equal(back.tensors["a"]["x"], torch.arange(3))
    assert back.tensors["b"] == {}
    assert back.data == {"n": 1.5}

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(Checkpoint(), path)
    assert read_checkpoint(path).data == {"n": 1.5}
    assert list(path.parent.iterdir()) == [path]
    path.write_bytes(b"no checkpoint")
    with pytest.raises(TrainingError, match="is not a checkpoint"):
        read_checkpoint(path)
