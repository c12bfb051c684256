"""`smle.verify`, `certify` and `project`, for estimators, corrected models and torch networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from smle.certificates.document import Certificate
from smle.doors.new_rules import project_model
from smle.errors import NotCertifiedError
from smle.estimators.base import SafeEstimator
from smle.rules import Specification

if TYPE_CHECKING:
    from smle.corrected import CorrectedModel
    from smle.heads.box.network.box_network import BoxNetwork
    from smle.heads.box.proof.verdict import Verdicts
    from smle.networks.safe_network import SafeNetwork
    from smle_check import Proved

__all__ = ["certify", "project", "verify"]


def certify(model: Any, *, files: dict[str, bytes] | None = None) -> Certificate:
    """Return a certificate that the exact checker accepts now.

    Args:
        model: A fitted estimator, a corrected model or a `SafeNetwork`, whose certificate is checked again; or a
            `BoxNetwork`, which is switched to eval mode and certified as it is now. Later changes to a box are not
            covered.
        files: For a `BoxNetwork`, the files to bind, by role (`model`, `rules`).

    Raises:
        NotCertifiedError: If a rule cannot be proved, or there are none.
        CertificateError: If the certificate of the model is not accepted.
        TypeError: If it is anything else.
    """
    if not hasattr(model, "certificate_"):
        from smle.heads.box.network.assurance import certify as certify_network

        return certify_network(model, files=files)
    if files is not None:
        raise TypeError("certify: files= is for a BoxNetwork. This model has a certificate already.")
    certificate: Certificate | None = model.certificate_
    if certificate is None:
        raise NotCertifiedError(
            "This model has no certificate: it has no rules, or was loaded with verify=False. Nothing is proved."
        )
    certificate.check()
    return certificate


@overload
def verify(model: BoxNetwork) -> Verdicts: ...


@overload
def verify(model: SafeEstimator | CorrectedModel | SafeNetwork) -> tuple[Proved, ...]: ...


def verify(model: Any) -> Any:
    """Judge every rule for a model as it would be deployed now.

    Returns:
        For a `BoxNetwork`, the verdicts, one for each obligation: `Holds`, `NotProved`, `Violated` or `Unknown`. For an
            estimator, a corrected model or a `SafeNetwork`, which always have a proof, what is proved, checked again.

    Raises:
        CertificateError: If the certificate of the model is not accepted.
        NotCertifiedError: If an estimator or corrected model has none.
        TypeError: If it is anything else.
    """
    if hasattr(model, "certificate_"):
        return certify(model).check()
    from smle.heads.box.network.assurance import verify as verify_network

    return verify_network(model)


@overload
def project(
    model: SafeEstimator, spec: Specification | None = None, *, X: Any = None, y: Any = None
) -> SafeEstimator: ...


@overload
def project(model: BoxNetwork, *, margin: float = 0.0) -> BoxNetwork: ...


def project(model: Any, spec: Specification | None = None, *, X: Any = None, y: Any = None, margin: float = 0.0) -> Any:
    """Return a copy that obeys, without training; the given model is not changed.

    Args:
        model: A fitted estimator, or a `BoxNetwork`.
        spec: The rules for an estimator, its own or edited ones. A network already has its rules.
        X: For an estimator, table with the input columns; see `smle.estimators.project_model`.
        y: For an estimator, table with the output columns.
        margin: For a network, extra room to keep in every clause, in the units of its left-hand side.

    Raises:
        NotCertifiedError: If no safe heads were found.
        TypeError: If it is anything else, or arguments are those of the other kind.
    """
    if isinstance(model, SafeEstimator):
        if margin:
            raise TypeError("project: margin= is for networks. Got an estimator.")
        return project_model(model, model.specification_ if spec is None else spec, X=X, y=y)
    if spec is not None or X is not None or y is not None:
        raise TypeError("project: spec=, X= and y= are for estimators. A network is projected to its own rules.")
    from smle.heads.box.network.assurance import project as project_network

    return project_network(model, margin=margin)
