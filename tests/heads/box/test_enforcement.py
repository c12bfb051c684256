"""Enforcements: whatever the choice, training ends with heads that are proved safe, and the refit keeps them so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from smle.heads.box.network.assurance import certify, verify
from smle.heads.box.training.enforcement import PDCG, enforcement_of
from smle.heads.box.training.refit import refit_network
from smle.nn import SafeNetwork
from smle.rules import Specification
from smle.training import Adversarial
from smle.training.loop import TrainingOptions, train
from support.safe_networks import BRAKING, DOSE, EVERYWHERE, LABELS, ONE_RULE, make_network, make_rows, squared

QUICK = TrainingOptions(max_epochs=6, batch_size=64, learning_rate=1e-2, verbose=False)


@pytest.mark.parametrize("bounds", ["fixed", "affine", "network"])
@pytest.mark.parametrize("spec", [BRAKING, EVERYWHERE, DOSE, LABELS], ids=["braking", "everywhere", "dose", "labels"])
def test_training_ends_safe_and_the_refit_keeps_it_so(spec: Specification, bounds: str) -> None:
    network = make_network(spec, bounds=bounds)
    X, y = make_rows(spec, 300)
    history = train(network, X, y, loss=squared, options=QUICK, enforcement=PDCG(memory=3))
    assert not network.training
    assert verify(network).hold
    assert len(history.safety) == len(history.loss)
    assert history.safety_name == "margin"
    with torch.no_grad():
        before = float(squared(network(X), y).mean())
    result = refit_network(network, X, y)
    with torch.no_grad():
        after = float(squared(network(X), y).mean())
    assert after <= before * (1 + 1e-4) + 1e-6
    assert result.after <= result.before
    certify(network)


def test_enforcements_by_name() -> None:
    assert type(enforcement_of("pdcg")) is PDCG
    own = PDCG(memory=10)
    assert enforcement_of(own) is own
    with pytest.raises(ValueError, match="'pdcg' or an object"):
        enforcement_of("magic")
    with pytest.raises(ValueError, match="memory >= 1"):
        PDCG(memory=0)


def test_an_enforcement_is_for_boxes() -> None:
    X, y = make_rows(EVERYWHERE, 20)
    network = SafeNetwork(nn.Linear(2, 2), EVERYWHERE)
    with pytest.raises(ValueError, match=r"Expected a BoxNetwork for an enforcement\. Got SafeNetwork"):
        train(network, X, y, loss=squared, options=QUICK, enforcement="pdcg")


# --- refit


def test_refit_is_deployed_exactly_and_fits_better() -> None:
    network = make_network(ONE_RULE)
    X, y = make_rows(ONE_RULE, 400)
    train(network, X, y, loss=squared, options=QUICK, enforcement="pdcg")
    result = refit_network(network, X, y)
    assert result.heads > 0
    assert result.after < result.before
    stored = network.frozen_heads()
    network.eval()  # again, as callers do
    again = network.frozen_heads()
    np.testing.assert_array_equal(stored.heads[0].W, again.heads[0].W)  # type: ignore[union-attr]
    assert verify(network).hold


def test_refit_keeps_what_validation_prefers() -> None:
    network = make_network(EVERYWHERE)
    X, y = make_rows(EVERYWHERE, 200)
    train(network, X, y, loss=squared, options=QUICK, enforcement="pdcg")
    before = network.frozen_heads().heads[0]
    with torch.no_grad():
        current = network(X)
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    result = refit_network(network, X, noise, validation=(X, current))  # validation is perfect already
    assert result.heads == 0
    np.testing.assert_array_equal(network.frozen_heads().heads[0].W, before.W)  # type: ignore[union-attr]


def test_refit_weighs_rows() -> None:
    X, y = make_rows(EVERYWHERE, 200)
    two = torch.cat([y[:100], y[:100] - 0.5])
    errors = []
    for weight in (None, np.repeat([1.0, 0.0], 100)):
        network = make_network(EVERYWHERE)
        refit_network(network, torch.cat([X[:100], X[:100]]), two, sample_weight=weight)
        with torch.no_grad():
            errors.append(float(squared(network(X[:100]), y[:100]).mean()))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_refit_of_classifiers(loss: str) -> None:
    network = make_network(LABELS if loss == "logistic" else EVERYWHERE)
    X, _ = make_rows(network.spec, 300)
    m = len(network.spec.targets)
    y = torch.nn.functional.one_hot((X[:, 0] > X[:, 1]).long(), m).float()
    result = refit_network(network, X, y, loss=loss)
    assert result.after < result.before
    with torch.no_grad():
        logits = network(X).double()
    per_row = (
        torch.nn.functional.binary_cross_entropy_with_logits(logits, y.double(), reduction="none").sum(dim=1)
        if loss == "logistic"
        else torch.nn.functional.cross_entropy(logits, y.argmax(dim=1), reduction="none")
    )
    assert float(per_row.mean()) == pytest.approx(result.after, rel=1e-4)
    certify(network)


def test_refit_refuses_unknown_losses() -> None:
    network = make_network(EVERYWHERE)
    X, y = make_rows(EVERYWHERE, 10)
    with pytest.raises(ValueError, match="'squared', 'logistic', 'softmax'"):
        refit_network(network, X, y, loss="hinge")


@pytest.mark.parametrize("bounds", ["fixed", "affine"])
def test_adversarial_training_attacks_and_ends_proved(bounds: str) -> None:
    """Attacks find what the network breaks, the steps down weaken it, and PDCG has the last word."""
    network = make_network(EVERYWHERE, bounds=bounds)
    X, y = make_rows(EVERYWHERE, 200)
    enforcement = Adversarial(points=16, steps=2, rate=1e-2)
    history = train(network, X, 5 * y, loss=squared, options=QUICK, enforcement=enforcement)
    found = history.projections
    within = [i for i, step in enumerate(found["step"]) if step > 0]
    assert any(found["strength"][i] > 0 for i in within)
    assert all(found["iterations"][i] == 0 for i in within)
    assert len(enforcement.final) == sum(head is not None for head in network.frozen_heads().heads)
    certify(network)


def test_adversarial_options_are_checked() -> None:
    with pytest.raises(ValueError, match="points >= 1"):
        Adversarial(points=0)
