"""Shared fixtures: one small trained model for all tests that only look at it, fitted once (support/fitted.py).

Every run tries the same examples and draws the same numbers, on one thread, so that it fails only when the code
changed. `make audit-examples` draws new examples.
"""

import random
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

from smle import SMLERegressor, Specification
from smle.demo import BRAKING_RULES, braking_data
from support.fitted import fitted_once

if find_spec("torch"):
    import torch

    torch.set_num_threads(1)
else:  # torch is an extra: tests of the rest run, as `make audit-pythons` does
    torch = None
threadpool_limits(1)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("repeatable", parent=settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("repeatable")


def _seed():
    random.seed(0)
    np.random.seed(0)
    if torch is not None:
        torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    """Once more: the fixtures of a test may have been made for an earlier one."""
    _seed()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _without_torch((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return _without_torch((yield))


def _without_torch(report):
    """Skip what fails for want of torch, where it is not installed."""
    wanting = ("No module named 'torch", "needs the package torch")
    if torch is None and report.failed and any(text in str(report.longrepr) for text in wanting):
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, "Skipped: needs torch")
    return report


@pytest.fixture(scope="session")
def braking_spec():
    return Specification.from_yaml(BRAKING_RULES)


@pytest.fixture(scope="session")
def braking_table():
    return braking_data(rows=1500)


@pytest.fixture(scope="session")
def braking_model(braking_spec, braking_table, tmp_path_factory):
    model = SMLERegressor(  # a box; others have heads of rules
        braking_spec, hidden_layer_sizes=(32, 32), embedding=16, max_epochs=40, random_state=0
    )
    inputs = braking_table[list(braking_spec.columns)]
    return fitted_once("braking", lambda: model.fit(inputs, braking_table["brake"]), tmp_path_factory)


@pytest.fixture
def braking_folder(braking_model, tmp_path):
    folder = tmp_path / "model"
    braking_model.save(folder)
    return folder
