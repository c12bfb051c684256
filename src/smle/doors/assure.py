"""`smle.verify`, `certify` and `project`, for estimators, corrected models and torch networks.

Projecting gives edited rules to a trained model: a new proved head and certificate. What is in front of the head stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from smle.certificates.document import Certificate, arrays_of
from smle.errors import DataError, NotCertifiedError
from smle.estimators.base import SafeEstimator
from smle.heads.table import certify_head
from smle.rules import Choice, Specification
from smle.serving.perceptron import Perceptron
from smle.serving.served import Served
from smle.tables import encode_inputs, require_in_domain

if TYPE_CHECKING:
    from smle.corrected import CorrectedModel
    from smle.heads.box.network.box_network import BoxNetwork
    from smle.heads.box.proof.verdict import Verdicts
    from smle.networks.safe_network import SafeNetwork
    from smle_check import Proved

__all__ = ["certify", "project", "project_model", "verify"]


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
        TypeError: If the model is anything else.
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
            estimator, a corrected model or a `SafeNetwork`, what its certificate proves, checked again.

    Raises:
        CertificateError: If the certificate of the model is not accepted.
        NotCertifiedError: If an estimator or corrected model has no certificate.
        TypeError: If the model is anything else.
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
        X: For an estimator, table with the input columns. With X and y, the heads of a box are fitted again.
        y: For an estimator, table with the output columns.
        margin: For a network, extra room to keep in every clause, in the units of its left-hand side.

    Raises:
        NotCertifiedError: If no safe heads were found.
        TypeError: If the model is anything else, or an argument is for the other kind of model.
    """
    if isinstance(model, SafeEstimator):
        if margin:
            raise TypeError("project: margin= is for networks. Got an estimator.")
        return project_model(model, model.specification_ if spec is None else spec, X=X, y=y)
    if spec is not None or X is not None or y is not None:
        raise TypeError("project: spec=, X= and y= are for estimators. A network is projected to its own rules.")
    from smle.heads.box.network.assurance import project as project_network

    return project_network(model, margin=margin)


# --- edited rules for a trained model


def project_model(
    model: SafeEstimator, spec: Specification, *, X: Any = None, y: Any = None, validation_fraction: float = 0.2
) -> SafeEstimator:
    """Return a copy of a model that obeys other rules; what is in front of its head stays unchanged.

    Corrected answers are corrected by the new rules instead; an estimator inside may read other columns of the table.
    In a box, each cell of the new rules starts from the old head that covers most of it, and gets the nearest safe head
    (this needs torch). With data, the heads are then fitted, if held-out rows improve.

    Args:
        model: A fitted or loaded model.
        spec: The edited rules, over the same inputs and outputs. Ranges of inputs may change.
        X: Table with the input columns, or None.
        y: Table with the output columns, or None.
        validation_fraction: Share of the rows that judge the refit.

    Raises:
        DataError: If inputs, outputs or the pick of a choice differ, or the table does not fit.
        ContradictionError: If the new rules cannot be satisfied together.
        NotCertifiedError: If no safe heads were found.
        MissingDependencyError: If the head is a box, and torch is not installed.
    """
    if not spec.rules:
        raise NotCertifiedError("The edited file states no rules, so there is nothing to prove.")
    old = model.deployed_
    if isinstance(old.front, Perceptron) or old.front.columns is None:
        _require_same("inputs", old.specification_, spec)
    _require_same("outputs", old.specification_, spec)
    result = type(model)(**{**model.get_params(deep=False), "spec": spec})
    task = result._plain_task(spec)
    encoded = targets = None
    if X is not None:
        encoded = encode_inputs(spec, X)
        require_in_domain(spec, encoded, "rows")
    if y is not None:
        targets = task.encode(y)
    if not old.reads_answers:
        from smle.heads.box.estimators.box_projection import projected

        certificate = projected(old, task, X, encoded, targets, validation_fraction)
    else:
        known = {} if old.proof is None else arrays_of(old.proof.tensors)
        default, scale = known.get("clips.default"), known.get("check.scale")
        if targets is not None:
            default, scale = task.default(targets)
        certificate = certify_head(spec, default=default, scale=scale)
    served = Served(old.front, spec, certificate)
    description = _description(model)
    if encoded is not None:
        description["training"] = served.usage(served.reader.opened(X, encoded)).to_json()
    served.describe(description)
    result._deploy(served)
    return result


def _require_same(what: str, old: Specification, new: Specification) -> None:
    ours, theirs = (spec.columns if what == "inputs" else spec.targets for spec in (old, new))
    if ours != theirs:
        raise DataError(
            f"Expected the same {what} as the model's rules ({', '.join(ours)}). Got {', '.join(theirs)}. "
            "Train a new model for other columns."
        )
    before, after = (spec.inputs if what == "inputs" else spec.outputs for spec in (old, new))
    if [type(item) for item in before] != [type(item) for item in after]:
        raise DataError(f"Expected the same kinds of {what} as in the model's rules. Train a new model for others.")
    if what == "inputs":
        return
    for was, now in zip(old.outputs, new.outputs, strict=True):
        if isinstance(was, Choice) and isinstance(now, Choice) and was.pick != now.pick:
            raise DataError(
                f"Choice '{was.name}': expected pick: {was.pick}, as in the model's rules. Got pick: {now.pick}, under "
                f"which the same scores mean opposite decisions. Write pick: {was.pick}, or train a new model."
            )


def _description(model: SafeEstimator) -> dict[str, Any]:
    """Return the old description with its origin, without what was measured under the old rules."""
    origin = model.certificate_
    measured = ("scores", "training")
    description = {key: value for key, value in model.description_.items() if key not in measured}
    provenance = {**description["provenance"], "projected_from": origin.document["digest"] if origin else None}
    return {**description, "provenance": provenance, "scores": {}}
