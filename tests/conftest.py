"""Shared fixtures: one small trained model for all tests that only look at it."""

import pytest
import torch

from smle import SafeRegressor, Specification
from smle.demo import BRAKING_RULES, braking_data

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def braking_spec():
    return Specification.from_yaml(BRAKING_RULES)


@pytest.fixture(scope="session")
def braking_table():
    return braking_data(rows=1500)


@pytest.fixture(scope="session")
def braking_model(braking_spec, braking_table):
    model = SafeRegressor(braking_spec, hidden=(32, 32), embedding=16, max_epochs=40, random_state=0)
    return model.fit(braking_table[list(braking_spec.columns)], braking_table["brake"])


@pytest.fixture
def braking_folder(braking_model, tmp_path):
    folder = tmp_path / "model"
    braking_model.save(folder)
    return folder
