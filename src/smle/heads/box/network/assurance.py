"""Verify, certify and project networks."""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
import copy
from os import PathLike

import numpy as np

import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.errors import NotCertifiedError
from smle.heads.box.algorithms.projection import project as project_heads
from smle.heads.box.algorithms.replay import replayed
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.issue_box import issue, require_proved
from smle.heads.box.proof.verdict import Verdicts
from smle.heads.box.proof.verify import verify as verify_frozen_heads
from smle.networks.asked import AskedModule
from smle.networks.folders import weights_of
from smle.networks.predicted import evaluating

__all__ = ["certify", "project", "verify"]


def _require_box(network: object) -> None:
    if not isinstance(network, BoxNetwork):
        hint = " Read a folder first: smle.load(folder)." if isinstance(network, str | PathLike) else ""
        raise TypeError(
            f"Expected an estimator, a corrected model or a network of smle.nn. Got {type(network).__name__}.{hint}"
        )


def verify(network: BoxNetwork) -> Verdicts:
    """Judge every rule for the network as it would be deployed now.

    A rule without proof is `NotProved`, with a corner of the box that breaks it, or `Violated`, with an input at which
    the network itself breaks it. See `smle.attack` and `smle.counterexample`.
    """
    _require_box(network)
    verdicts = verify_frozen_heads(network.frozen_heads(), network.spec, network.cells)
    return verdicts if verdicts.hold else _replayed(verdicts, network)


def _replayed(verdicts: Verdicts, network: BoxNetwork) -> Verdicts:
    """Run the network itself where its heads are not proved."""
    asked = AskedModule(network, network.spec)
    with evaluating(network):
        try:
            asked.ask(np.array([network.spec.ends()[0]] * 2))
        except Exception:  # noqa: BLE001  # a backbone that reads other inputs than the features may raise anything
            return verdicts
        return replayed(verdicts, network.spec, asked, cell_of=network.deployed.cell_of)


def certify(
    network: BoxNetwork, *, tensors: dict[str, smle_check.Tensor] | None = None, files: dict[str, bytes] | None = None
) -> Certificate:
    """Return a certificate for the deployed form of the network, as it is now.

    It does not cover later changes: after training or loading weights, certify again.

    Args:
        network: The network; it is switched to eval mode.
        tensors: The weights as stored, if the certificate is for a file; by default the network's.
        files: The files to bind, by role (`model`, `rules`).

    Raises:
        NotCertifiedError: If a rule cannot be proved.
    """
    _require_box(network)
    network.eval()
    if tensors is None:
        tensors = tensors_of(weights_of(network))
    try:
        return issue(network.spec, network.cells, network.frozen_heads(), tensors=tensors, files=files or {})
    except NotCertifiedError:
        # Names an input at which the network breaks a rule, if there is one.
        require_proved(verify(network), network.spec)
        raise


def project(network: BoxNetwork, *, margin: float = 0.0) -> BoxNetwork:
    """Return a copy with the nearest safe heads (in squared distance of their parameters), without training.

    Args:
        network: The network; it is not changed.
        margin: Extra room to keep in every clause, in the units of its left-hand side.

    Raises:
        NotCertifiedError: If no safe heads were found, or the exact checker does not accept them.
    """
    _require_box(network)
    safe = copy.deepcopy(network)
    safe.eval()
    result = project_heads(safe.frozen_heads(), safe.spec, safe.cells, margin=margin)
    if not result.succeeded:
        reasons = [head.reason for head in result.heads if head is not None and head.reason]
        reason = f": {reasons[0]}" if reasons and reasons[0] else ""
        raise NotCertifiedError(
            f"No safe heads were found for this box{reason}. Leave more room in the rules, or use the head of rules "
            "(SafeRegressor, SafeClassifier), which needs none."
        )
    safe.pin(result.over)
    certify(safe)
    return safe
