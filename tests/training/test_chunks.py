"""Parquet row groups as training data."""

import pandas as pd
import pytest
import torch

from smle import certify
from smle.errors import DataError
from smle.nn import SafeNetwork
from smle.nn.backbones import MLP
from smle.rules import Specification
from smle.training import TrainingOptions, train
from smle.training.chunks import ParquetBatches

COLUMNS = ["distance", "speed", "friction"]


@pytest.fixture
def path(braking_table, tmp_path):
    braking_table.to_parquet(tmp_path / "data.parquet", row_group_size=250)
    return tmp_path / "data.parquet"


def _rows(batches):
    return torch.cat([torch.cat([X, y.to(X.dtype)], dim=1) for X, y in batches])


def test_every_pass_has_every_row_once(path, braking_spec, braking_table):
    shuffled = ParquetBatches(path, braking_spec, batch_size=100, seed=0)
    ordered = _rows(ParquetBatches(path, braking_spec, batch_size=100))
    assert ordered.shape == (1500, 4)
    assert torch.equal(ordered[:, :3], torch.tensor(braking_table[COLUMNS].to_numpy()))
    first, second = _rows(shuffled), _rows(shuffled)
    assert not torch.equal(first, second)
    assert torch.equal(first, _rows(ParquetBatches(path, braking_spec, batch_size=100, seed=0)))
    for rows in (first, second):
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, ordered.tolist()))


def test_only_one_group_is_read_at_a_time(path, braking_spec):
    batches = ParquetBatches(path, braking_spec, batch_size=4096, seed=1)
    assert [len(X) for X, _ in batches] == [250] * 6


def test_training_on_row_groups_ends_with_a_certificate(path, braking_spec, braking_table):
    X = braking_table[COLUMNS].to_numpy()
    torch.manual_seed(0)
    network = SafeNetwork(MLP((16,), 8, shift=X.mean(axis=0), scale=X.std(axis=0)), braking_spec, embedding=8)
    training = ParquetBatches(path, braking_spec, batch_size=64, seed=0, groups=[0, 1, 2, 3, 4])
    validation = ParquetBatches(path, braking_spec, groups=[5])
    history = train(
        network,
        training,
        loss=torch.nn.functional.mse_loss,
        options=TrainingOptions(max_epochs=8, learning_rate=1e-2, progress=False),
        enforcement="gauge",
        validation=validation,
    )
    assert history.best < history.validation_loss[0]
    assert certify(network).check()


def test_an_interrupted_run_goes_on_with_the_same_order(path, braking_spec, tmp_path):
    def run(epochs, checkpoint):
        torch.manual_seed(0)
        network = SafeNetwork(torch.nn.Linear(3, 4), braking_spec, embedding=4)
        batches = ParquetBatches(path, braking_spec, batch_size=64, seed=0)
        stop = [lambda info: info.epoch + 1 == epochs]
        options = TrainingOptions(max_epochs=4, progress=False)
        loss = torch.nn.functional.mse_loss
        return train(network, batches, loss=loss, options=options, callbacks=stop, checkpoint=checkpoint).loss

    class StopHereError(Exception):
        pass

    def interrupted(info):
        if info.epoch == 2:
            raise StopHereError

    torch.manual_seed(0)
    network = SafeNetwork(torch.nn.Linear(3, 4), braking_spec, embedding=4)
    batches = ParquetBatches(path, braking_spec, batch_size=64, seed=0)
    place = tmp_path / "run.checkpoint"
    with pytest.raises(StopHereError):
        train(
            network, batches, loss=torch.nn.functional.mse_loss, checkpoint=place, callbacks=[interrupted],
            options=TrainingOptions(max_epochs=4, progress=False),
        )  # fmt: skip
    assert run(4, place) == run(4, None)


def test_refusals(path, braking_spec, tmp_path, braking_table):
    (tmp_path / "no.parquet").write_text("no")
    with pytest.raises(DataError, match="not readable as Parquet"):
        ParquetBatches(tmp_path / "no.parquet", braking_spec)
    with pytest.raises(DataError, match="not readable as Parquet"):
        ParquetBatches(tmp_path / "absent.parquet", braking_spec)
    with pytest.raises(DataError, match="row groups 0 to 5"):
        ParquetBatches(path, braking_spec, groups=[6])
    with pytest.raises(ValueError, match="batch_size"):
        ParquetBatches(path, braking_spec, batch_size=0)
    braking_table[["distance", "brake"]].to_parquet(tmp_path / "less.parquet")
    with pytest.raises(DataError, match="speed, friction"):
        ParquetBatches(tmp_path / "less.parquet", braking_spec)
    braking_table.assign(speed=99.0).to_parquet(tmp_path / "far.parquet")
    with pytest.raises(DataError, match="row group 0 lie outside"):
        list(ParquetBatches(tmp_path / "far.parquet", braking_spec))
    choices = Specification.from_yaml(
        "inputs: {speed: [0, 40]}\nchoices: {c: [x, y]}\nrules:\n  - {name: r, then: c != x}\n"
    )
    pd.DataFrame({"speed": [1.0], "c": ["y"]}).to_parquet(tmp_path / "choices.parquet")
    with pytest.raises(DataError, match="`targets` for choices"):
        ParquetBatches(tmp_path / "choices.parquet", choices)
