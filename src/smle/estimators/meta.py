"""Fits an estimator and puts a certified head behind it: read, certify, fit a copy, store it, serve it."""

from __future__ import annotations

import copy
import time
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metadata_routing import MetadataRequest, MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if

from smle.advice.examine import conflicts_explained
from smle.certificates.document import Certificate
from smle.errors import ConversionError, DataError
from smle.estimators.base import SafeEstimator, short_history
from smle.estimators.networks import Lesson, NetworkEstimator
from smle.estimators.tasks import Held, TrainingRows
from smle.graphs.convert import stored_form
from smle.heads.contract import HeadProgram
from smle.heads.table import certify_head, program_of
from smle.monitor import Usage
from smle.parameters import or_none, plain_parameters, stated, stored_parameters
from smle.serving.perceptron import Perceptron
from smle.serving.served import Served
from smle.tables import column_names
from smle.tables.frames import is_text
from smle.tables.further import FurtherColumns

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

__all__ = ["MetaEstimator"]


def _is_estimator(value: Any) -> bool:
    return not isinstance(value, type) and all(hasattr(value, name) for name in ("fit", "predict", "get_params"))


def _learns_in_parts(model: MetaEstimator) -> bool:
    if model.estimator is not None and not hasattr(model.estimator, "partial_fit"):
        raise AttributeError(f"{_title_of(model.estimator)}, the estimator inside, has no partial_fit. Call fit.")
    return True


@dataclass(eq=False, repr=False)
class MetaEstimator(SafeEstimator):
    """A certified head behind any estimator. See `SafeRegressor` and `SafeClassifier`."""

    estimator: Any = stated(
        None,
        or_none(_is_estimator),
        "an estimator (not its class) or None",
        """Any estimator or pipeline of scikit-learn, XGBoost or LightGBM. `fit` fits a copy (`estimator_`) to the
        whole table but its outputs, including columns that the rules do not know, text and missing values; numbers are
        rounded to float32. The copy is stored and served as ONNX, a network of smle as plain weights. None:
        `NetworkRegressor()` or `NetworkClassifier()`.""",
        stored=False,
    )
    _: KW_ONLY
    random_state: Any = stated(
        None, lambda value: True, "a seed", "Seed of everything random in the estimator, instead of its own."
    )

    network: ClassVar[type[NetworkEstimator]]
    """The default estimator."""

    # --- what subclasses define

    def _finished(self, front: Any, task: Any, rows: TrainingRows, held: Held | None) -> Any:
        """Return the fitted model as the head is to read it; `held` has the held-out rows, if any."""
        return front

    def _learned(self, front: Any) -> Any:
        """Undo `_finished`, for a network."""
        return front

    def _inner_estimator(self) -> Any:
        """Return an unfitted copy of the estimator inside."""
        if self.estimator is None:
            return self._seeded(self._requested(self.network()))
        return self._seeded(clone(self.estimator))

    def _seeded(self, inner: Any) -> Any:
        if self.random_state is None:
            return inner
        names = [name for name in sorted(inner.get_params()) if name.split("__")[-1] == "random_state"]
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            draw = check_random_state(seed)
            return inner.set_params(**{name: int(draw.randint(2**31 - 1)) for name in names})
        return inner.set_params(**dict.fromkeys(names, seed))

    @staticmethod
    def _requested(network: Any) -> Any:
        from sklearn.utils._metadata_requests import _routing_enabled

        return network.set_fit_request(sample_weight=True) if _routing_enabled() else network

    # --- scikit-learn

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what the estimator reads: what the one inside reads, without sparse matrices."""
        tags = super().__sklearn_tags__()
        tags.input_tags = replace(self._inner_tags().input_tags, sparse=False)
        return tags

    def _inner_tags(self) -> Any:
        return get_tags(self.network() if self.estimator is None else self.estimator)

    def get_metadata_routing(self) -> Any:
        """Return how scikit-learn routes arguments of `fit` to the estimator inside."""
        own = MetadataRequest(owner=self)
        own.score = self._get_metadata_request().score
        mapping = MethodMapping().add(caller="fit", callee="fit")
        inner = self._requested(self.network()) if self.estimator is None else self.estimator
        return MetadataRouter(owner=self).add_self_request(own).add(estimator=inner, method_mapping=mapping)

    # --- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> Self:
        """Fit the estimator to a table and its targets, and certify the head behind it.

        Args:
            X: Table with the rules' input columns and any others the estimator is to read; or an array of the rules'
                inputs in their order.
            y: Targets: a table with the rules' output columns, or an array in their order.
            sample_weight: Weight of each row (N,), passed on to the estimator.
            params: Further arguments of the estimator's `fit`.

        Raises:
            ValueError: If a parameter has an invalid value.
            RuleError: If the rules cannot be read.
            DataError: If the data do not fit the rules' columns and ranges.
            ContradictionError: If the rules cannot be satisfied together.
            NotCertifiedError: If no proof was found. After any error the model is unchanged.
            ConversionError: If the estimator cannot be stored, or its stored form answers differently.
        """
        fitted = self._emptied()
        inner = fitted._inner_estimator()
        if getattr(inner, "warm_start", False) and hasattr(self, "estimator_"):
            inner = copy.deepcopy(self.estimator_).set_params(**inner.get_params(deep=False))
        routed = _routed_arguments(fitted, sample_weight, params)
        return self._taken_over(fitted, fitted._fit(inner, X, y, routed))

    @available_if(_learns_in_parts)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Continue training on some rows with the estimator's `partial_fit`, and bind the certificate to the result.

        Arguments as in `fit`. model.json then describes only these rows.

        Raises:
            AttributeError: If the estimator has no `partial_fit`.
            ConversionError: If the model was loaded, and its estimator is stored as ONNX.
            Others: As in `fit`. After any error the model is unchanged.
        """
        fitted, known = self._emptied(), None
        inner = fitted._inner_estimator()
        if hasattr(self, "deployed_"):
            if not hasattr(self, "estimator_"):
                raise ConversionError(
                    "The estimator inside is stored as ONNX, which cannot learn. Expected a model that was fitted "
                    "here, or a network. Call fit."
                )
            known, inner, X = self.deployed_, copy.deepcopy(self.estimator_), self._given_rows(X)
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        fitted._fit(inner, X, y, weights, once=True, known=known)
        self.__dict__ = fitted.__dict__
        return self

    def _fit(
        self, inner: Any, X: Any, y: Any, routed: dict[str, Any], *, once: bool = False, known: Served | None = None
    ) -> Usage:
        """Fit in place, keeping the rules and the head of `known`; return what the model does to the rows.

        On failure the model may be half-fitted.
        """
        spec = self._given() if known is None else known.specification_
        task = self._plain_task(spec, y)
        is_network = isinstance(inner, NetworkEstimator)
        rows = self._read_rows(spec, inner._task_of(spec, y) if is_network else task, X, y, least=1 if once else 2)
        # Certify first, to fail before an hour of training.
        certificate, head = (None, None) if known is None else (known.certificate_, known.head)
        if certificate is None:
            certificate, head = _certified(rows)
        started = time.monotonic()
        if is_network:
            front, held, facts = _network_front(inner, rows, routed, once=once)
        else:
            front, held, facts = _stored_front(inner, rows, routed, once=once)
        facts = {"history": {"seconds": round(time.monotonic() - started, 3)}, "seed": None, **facts}
        served = Served(self._finished(front, task, rows, held), spec, certificate, head=head)
        self.estimator_ = facts.pop("fitted")
        usage = self._serve(served, rows, task, **facts)
        self._compared(rows, routed.get("sample_weight"), held, facts["seed"])
        return usage

    # --- loading

    def _deploy(self, served: Served) -> None:
        super()._deploy(served)
        if hasattr(self, "estimator_") or not isinstance(served.front, Perceptron):
            return
        spec, kind = served.specification_, self.network
        inner = kind(**stored_parameters(kind, served.description_.get("network", {})))
        self.estimator = inner if self.estimator is None else self.estimator
        columns = (*(item.name for item in spec.inputs), *(served.front.columns or ()))
        task = inner._task_of(spec).restored({**served.description_, "thresholds": None})
        self.estimator_ = clone(inner)._adopt(task, spec, self._learned(served.front), columns, named=True)


def _certified(rows: TrainingRows) -> tuple[Certificate | None, HeadProgram | None]:
    """Return the certificate of the head and its program, or None without rules."""
    spec = rows.task.spec
    if not spec.rules:
        return None, None
    with conflicts_explained(spec):
        default, scale = rows.task.default(rows.targets)
        certificate = certify_head(spec, default=default, scale=scale)
        return certificate, program_of(certificate)


def _network_front(
    inner: NetworkEstimator, rows: TrainingRows, routed: dict[str, Any], *, once: bool
) -> tuple[Perceptron, Held | None, dict[str, Any]]:
    """Train a network on the inputs of the rules and all further columns; return it with facts for model.json."""
    unknown = set(routed) - {"sample_weight"}
    if unknown:
        raise TypeError(f"{type(inner).__name__}.fit takes no argument '{min(unknown)}'.")
    start = getattr(inner, "network_", None)
    inputs = [item.name for item in rows.spec.inputs]
    further = inner._further if start is not None else FurtherColumns.of(rows.frame, rows.spec, without=inputs)
    wide = rows.encoded if not further.width else np.hstack([rows.encoded, further.read(rows.frame)])
    lesson = Lesson(
        rows.task, rows.spec, further, wide, rows.targets, routed.get("sample_weight"),
        tuple(rows.frame.columns), column_names(rows.table) is not None,
    )  # fmt: skip
    inner._learn(lesson, start=start, once=once)
    network = inner.network_
    return network, inner.held_out_, {
        "architecture": network.architecture, "seed": inner.seed_, "history": short_history(inner.history_),
        "network": plain_parameters(inner), "fitted": inner,
    }  # fmt: skip


def _stored_front(
    inner: Any, rows: TrainingRows, routed: dict[str, Any], *, once: bool
) -> tuple[Any, Held | None, dict[str, Any]]:
    """Fit any other estimator; return its stored form with facts for model.json."""
    targets, classes = rows.task.for_estimator(rows.targets), None
    if once:
        several = getattr(rows.task, "classes", None)
        known = several[0] if isinstance(several, list) and targets.ndim == 1 else several
        fitted = inner.partial_fit(rows.frame, targets, **routed, **({} if known is None else {"classes": known}))
    else:
        fitted, classes = _fit_inner(inner, rows.frame, targets, routed)
    best = getattr(fitted, "best_estimator_", None)
    if isinstance(best, NetworkEstimator):  # train the result of a search again, to store it as plain weights
        task = best._task_of(rows.spec).restored(rows.task.facts())
        front, held, facts = _network_front(clone(best), rows._replace(task=task), routed, once=False)
        return front, held, {**facts, "fitted": fitted}
    stored = stored_form(fitted, rows.spec, rows.frame, rows.encoded, classes=classes)
    architecture = {"backbone": "onnx", "estimator": _title_of(fitted), "columns": list(stored.columns or ())}
    return stored, None, {"architecture": architecture, "fitted": fitted}


def _fit_inner(
    inner: Any, frame: pd.DataFrame, targets: npt.NDArray[Any], routed: dict[str, Any]
) -> tuple[Any, list[Any] | None]:
    """Fit an estimator; return it, and the values of its classes if it only numbers them.

    Raises DataError if the estimator reads only numbers and there is text, or takes one output and there are several.
    """
    last = inner.steps[-1][1] if isinstance(inner, Pipeline) else inner
    classes = None
    if type(last).__name__ in ("XGBClassifier", "XGBRFClassifier") and targets.ndim == 1:  # wants classes 0, 1, 2, ...
        values, targets = np.unique(targets, return_inverse=True)
        classes = values.tolist()
    if _scales(last):
        inner = TransformedTargetRegressor(inner, transformer=StandardScaler())
    try:
        return inner.fit(frame, targets, **routed), classes
    except ValueError as error:
        texts = [name for name in frame.columns if is_text(frame[name])]
        if "could not convert string to float" in str(error) and texts:
            raise DataError(
                f"{_title_of(last)} reads numbers, and column '{texts[0]}' holds text. Put an encoder in front: "
                f"make_pipeline(make_column_transformer((OneHotEncoder(handle_unknown='ignore'), {texts}), "
                f"remainder='passthrough'), {_title_of(last)}())."
            ) from error
        if targets.ndim == 1 or ("1d" not in str(error) and "1D" not in str(error)):
            raise
        name, wrap = _title_of(last), "MultiOutputClassifier" if is_classifier(last) else "MultiOutputRegressor"
        raise DataError(
            f"{name} takes one output alone. Wrap it: {wrap}({name}()) fits one for each output."
        ) from error


def _scales(estimator: Any) -> bool:
    """Return whether to scale the targets of an estimator to their spread, as for XGBoost.

    XGBoost adds float32 numbers to a mean: for targets near 1e6 it loses digits that its stored form keeps, and vice
    versa. With a parameter whose meaning depends on the unit of the targets, they stay.
    """
    if type(estimator).__name__ not in ("XGBRegressor", "XGBRFRegressor"):
        return False
    params = estimator.get_params()
    given = [params.get(name) for name in ("gamma", "reg_alpha", "base_score", "eval_metric", "early_stopping_rounds")]
    return params.get("objective") in (None, "reg:squarederror") and not any(given)


def _routed_arguments(model: Any, sample_weight: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return the further arguments of `fit` for the estimator inside: as scikit-learn routes them, else as passed."""
    from sklearn.utils._metadata_requests import _routing_enabled

    given = params if sample_weight is None else {**params, "sample_weight": sample_weight}
    if _routing_enabled():
        return dict(process_routing(model, "fit", **given).estimator.fit)
    inner, prefix = model.estimator, ""
    while isinstance(inner, Pipeline):  # without routing, a pipeline must be told which step is meant
        name, inner = inner.steps[-1]
        prefix += f"{name}__"
    return {f"{prefix}{name}" if name == "sample_weight" else name: value for name, value in given.items()}


def _title_of(estimator: Any) -> str:
    """Return the name of an estimator: of a pipeline, its last step; of a search or wrapper, with what it holds."""
    if isinstance(estimator, Pipeline):
        return _title_of(estimator.steps[-1][1])
    if isinstance(estimator, TransformedTargetRegressor) and estimator.regressor is not None:
        return _title_of(estimator.regressor)
    inside = getattr(estimator, "estimator", None)
    return type(estimator).__name__ if inside is None else f"{type(estimator).__name__}({_title_of(inside)})"
