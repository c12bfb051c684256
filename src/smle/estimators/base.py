"""How the estimators are fitted, and rebuilt from what is stored: encode, train, certify."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metadata_routing import MetadataRequest, MetadataRouter, MethodMapping
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight

from smle.certificates.agreement import require_kind
from smle.certificates.document import Certificate
from smle.corrected import Answered, ServedModel
from smle.defaults import NETWORK
from smle.errors import AccuracyWarning, CertificateError, DataError, ModelFormatError
from smle.estimators.description import describe, short_history
from smle.estimators.fitted import FittedModel
from smle.estimators.inner import fit_inner
from smle.estimators.inputs import plain_table
from smle.estimators.parameters import plain_parameters, require_parameters, stored_parameters
from smle.estimators.scores import compare_held_out
from smle.estimators.tasks import Held, Rows, Task
from smle.guarantees import conflicts_explained, require_units
from smle.heads import certify_head
from smle.heads.grid.targets import reconciled
from smle.monitor import Usage
from smle.programs import Perceptron
from smle.rules import Specification
from smle.storage import ModelRecord
from smle.tables import column_names, encode_inputs, require_in_domain

if TYPE_CHECKING:
    from typing_extensions import Self

    from smle.estimators.network import Trained
    from smle.training.enforcement import Enforcement
    from smle.training.options import Callback

__all__ = ["SafeEstimator", "without_rules"]

Array = npt.NDArray[np.float64]


def _is_network(model: SafeEstimator) -> bool:
    if model.estimator is not None:
        raise AttributeError("partial_fit is for networks. This model has an estimator inside: call fit.")
    return True


@dataclass(eq=False, repr=False)
class SafeEstimator(FittedModel, BaseEstimator):  # type: ignore[misc]
    """A multi-layer perceptron that provably obeys rules. See `SafeRegressor` and `SafeClassifier`.

    Args:
        spec: The rules: a Specification, the path of a rules file, or YAML text. None: no rules.
        estimator: Any scikit-learn estimator or pipeline, of XGBoost or LightGBM too, to fit instead of a network. It
            sees the table as it is passed, columns that the rules do not know, text and missing values included
            (numbers as float32 holds them, outputs left out). It is stored as ONNX and served so from `fit` on, behind
            a head that is proved to obey. Arguments that say how a network is trained have no meaning then. None: a
            network.
        hidden_layer_sizes: Widths of the hidden ReLU layers.
        embedding: Width of the layer that is clipped; the last one before the heads.
        bounds: `fixed` (after the linear layer of the embedding as general as any constants), `affine`, or `network`
            (a small ReLU network of the inputs; no ONNX export). `auto`: affine where rules mention inputs in
            `then`, so that the room for the outputs can move with the inputs; fixed elsewhere.
        learning_rate: Step size of Adam.
        weight_decay: How strongly weights are pulled to zero, as in AdamW: by this times the learning rate per step.
            None: 1 for squared errors, less the more of the variance the network explains (`smle.estimators.tasks`);
            0 for other losses, for learned boxes and in `partial_fit`.
        batch_size: Rows per step.
        max_epochs: Upper limit of epochs.
        patience: Epochs without a better validation loss before training stops.
        validation_fraction: Share of the rows that is held out for early stopping.
        schedule: Of the learning rate: `plateau`, `cosine` or None.
        final_epochs: Epochs at the end on all rows, those held out included, with a small learning rate; 0: none,
            None: a quarter of `max_epochs` for numbers that the network predicts well (nine tenths of the variance of
            rows held out); 40, and at most a quarter, for labels and choices, 0 for learned boxes of these.
        enforcement: `correct`: trained without rules on the targets as they are; a certified head then moves answers
            that break a rule to the nearest allowed ones. `refit_heads` has no meaning then, and other values of
            `bounds` and `gate` are refused. `pdcg`, or an Enforcement: the paper's learned box
            (`smle.nn.BoxNetwork`).
        refit_heads: After training, replace the heads by the safe ones that fit best, if validation improves.
        gate: One head per cell. False: one head for all inputs, as in the paper.
        out_of_domain: What `predict` and `score` do with rows outside the domain, unless they are told otherwise:
            `raise`, `warn` or `clip`. The rules are guaranteed inside; outside they hold at the clamped input.
        warm_start: `fit` goes on from the weights of the model as it is, instead of random ones, with a new optimizer.
            Learned boxes cannot.
        device: Where a network is trained: `cpu`, `cuda`, ...; `auto`: on a GPU if torch has one. Answers are computed
            on the CPU.
        callbacks: Functions of `smle.training.EpochInfo`, called after each epoch; one that returns True ends training.
        checkpoint: File to go on from after an interruption, and to write to after each epoch.
        compare: Compare with a quick plain model on the rows held out (`description_["scores"]`), and warn with an
            AccuracyWarning if the safe model is far behind.
        random_state: Seed, for repeatable results.
        verbose: Show a progress bar; None: only on a terminal.
    """

    spec: Specification | str | PathLike[str] | None = None
    _: KW_ONLY
    estimator: Any = None
    hidden_layer_sizes: tuple[int, ...] = NETWORK.hidden_layer_sizes
    embedding: int = NETWORK.embedding
    bounds: str = NETWORK.bounds
    learning_rate: float = NETWORK.learning_rate
    weight_decay: float | None = NETWORK.weight_decay
    batch_size: int = NETWORK.batch_size
    max_epochs: int = NETWORK.max_epochs
    patience: int | None = NETWORK.patience
    validation_fraction: float = NETWORK.validation_fraction
    schedule: str | None = NETWORK.schedule
    final_epochs: int | None = NETWORK.final_epochs
    enforcement: str | Enforcement = NETWORK.enforcement
    refit_heads: bool = NETWORK.refit_heads
    gate: bool = NETWORK.gate
    out_of_domain: str = "raise"
    warm_start: bool = False
    device: str = "auto"
    callbacks: Sequence[Callback] = ()
    checkpoint: str | PathLike[str] | None = None
    compare: bool = True
    random_state: Any = None
    verbose: bool | None = None

    # --- what kinds of outputs add

    def _task_of(self, spec: Specification, y: Any = None) -> Task:
        """Return what a specification predicts; y may tell more about the type of answers.

        Raises:
            DataError: If this kind of estimator does not predict such outputs.
        """
        raise NotImplementedError

    def _observed(self, X: Any, y: Any) -> Specification:
        """Return a specification without rules that fits the data."""
        raise NotImplementedError

    def _inner_estimator(self) -> Any:
        """Return an unfitted copy of the estimator inside."""
        return clone(self.estimator)

    @property
    def _task(self) -> Any:
        """What the fitted model predicts."""
        return self._task_of(self.specification_).restored(self.description_)

    def chances(self, found: Answered) -> Array | None:
        """Return the probabilities of what was served (rows, m), in the order of the rules' outputs; None for numbers.

        What the rules forbid at an input has 0, a label that they force 1.
        """
        settled = self.deployed_.settled(found.encoded)
        return self._task.chances(found.served.astype(np.float64), settled)  # type: ignore[no-any-return]

    # --- scikit-learn

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what an inner estimator reads."""
        tags = super().__sklearn_tags__()
        if self.estimator is not None:
            tags.input_tags = replace(get_tags(self.estimator).input_tags, sparse=False)
            tags.input_tags.allow_nan &= self.spec is not None
        return tags

    def get_metadata_routing(self) -> Any:
        """Return how arguments of `fit` are routed to an inner estimator; a network takes sample weights itself."""
        if self.estimator is None:
            return super().get_metadata_routing()
        own = MetadataRequest(owner=self)
        own.score = self._get_metadata_request().score
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=self).add_self_request(own).add(estimator=self.estimator, method_mapping=mapping)

    # --- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> Self:
        """Train on a table and its targets, and certify the result.

        Args:
            X: Table with the rules' input columns, or an array in their order.
            y: Targets: a table with the rules' output columns, or an array in their order.
            sample_weight: Weight of each row (N,) in loss, early stopping and refit. Rows of weight 0 are left out. It
                is passed on to an `estimator`.
            params: Further arguments for the `fit` of an `estimator`, which are routed to it.

        Raises:
            ValueError: If a parameter has a value that it cannot have.
            DataError: If the data do not fit the rules' columns and ranges.
            ContradictionError: If the rules cannot be satisfied together.
            NotCertifiedError: If no proof was found. After an error the model is what it was before.
            ConversionError: If an `estimator` cannot be stored, or its stored form answers otherwise.
        """
        fitted = self._emptied()
        if self.estimator is not None:
            fit_inner(fitted, X, y, sample_weight, params)
        elif params:
            raise TypeError(f"Without an estimator, fit takes no argument '{next(iter(params))}'.")
        else:
            fitted._fit(fitted._read_rows(X, y, sample_weight), self._start() if self.warm_start else None)
        self.__dict__ = fitted.__dict__
        head = Usage.from_json(self.description_["training"]).head
        for concern in (self.description_["scores"].get("concern"), "" if head is None else head.concern):
            if concern:
                warnings.warn(concern, AccuracyWarning, stacklevel=2)
        return self

    @available_if(_is_network)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Self:
        """Train for one epoch on some rows, from the weights as they are; what is served then is certified again.

        No rows are held out: there is no early stopping, and no temperature is fitted. model.json describes the last
        rows alone. Rows must lie in the ranges of the rules or, without rules, of the first call.

        Args:
            X: As in `fit`.
            y: As in `fit`.
            sample_weight: As in `fit`.
            classes: All options of a choice, for the first call without rules.

        Raises:
            AttributeError: If there is an `estimator`.
            ValueError: If a learned box is asked for.
            Others: As `fit`. After an error the model is what it was before.
        """
        known = self.deployed_ if hasattr(self, "deployed_") else None
        X = X if known is None else self._read(X)
        fitted = self._emptied()
        rows = fitted._read_rows(X, y, sample_weight, known=known, classes=classes)
        fitted._fit(rows, self._start(), once=True, proof=None if known is None else known.certificate_)
        self.__dict__ = fitted.__dict__
        return self

    def _emptied(self) -> Self:
        """Return a copy that is not fitted."""
        empty = type(self).__new__(type(self))
        kept = self.__dict__.items()
        empty.__dict__.update({name: value for name, value in kept if name.startswith("_") or not name.endswith("_")})
        require_parameters(empty.get_params(deep=False))
        return empty

    def _start(self) -> Any:
        """Return the perceptron to go on from; None: there is none yet."""
        if self.enforcement != "correct":
            raise ValueError("Expected enforcement='correct' to go on from known weights. Learned boxes start anew.")
        return self.deployed_.front if hasattr(self, "deployed_") else None

    def _fit(self, rows: Rows, start: Any, *, once: bool = False, proof: Certificate | None = None) -> None:
        """Set everything that fitting sets; a failure may leave it in parts. `proof`: of the head, if there is one."""
        spec, encoded, targets, weight = rows.spec, rows.encoded, rows.targets, rows.weight
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        corrects = self.enforcement == "correct"
        with conflicts_explained(spec):
            certificate = proof
            if corrects and spec.rules and proof is None:  # before training: what cannot be proved is refused at once
                default, scale = rows.task.default(targets)
                certificate = certify_head(spec, default=default, scale=scale)
            learned = self._task_of(without_rules(spec)) if corrects else rows.task
            trained = self._trained(learned, encoded, targets, weight, seed, start=start, once=once)
        self.history_ = trained.history
        front = self._finished(Perceptron(trained.tensors), rows, trained.held)
        architecture = {"backbone": "mlp", "hidden": front.widths[1:-1], "embedding": front.widths[-1]}
        served = ServedModel(front, spec, trained.certificate or certificate)
        history = short_history(self.history_)
        self._serve(
            served,
            rows,
            encoded,
            [item.name for item in spec.inputs],
            architecture=architecture,
            seed=seed,
            history=history,
        )
        if spec.rules and self.compare and rows.task.is_scored and trained.held is not None:
            scores = compare_held_out(self, encoded, targets, weight, held=trained.held.rows, seed=seed)
            self.set_scores(scores)

    def _finished(self, front: Any, rows: Rows, held: Held | None) -> Any:
        """Return the model in front of the head as it is to be served; `held` are the rows held out, if there are."""
        return front

    def _trained(
        self, task: Task, X: npt.NDArray[Any], targets: Array, weight: Array | None, seed: int, **how: Any
    ) -> Trained:
        from smle.estimators.network import train_network

        return train_network(self, task, X, targets, weight, seed, **how)

    def _read_rows(
        self, X: Any, y: Any, sample_weight: Any = None, *, known: ServedModel | None = None, classes: Any = None
    ) -> Rows:
        """Return tables as rules and loss read them, without rows of weight zero; `known` is to go on from."""
        given = self._given() if known is None else known.specification_
        X = plain_table(X, given)
        spec = self._observed(X, y if classes is None else classes) if given is None else given
        task = self._task_of(spec, y)
        spec, encoded, targets = task.spec, encode_inputs(spec, X), task.encode(y)
        if len(encoded) != len(targets):
            raise DataError(f"Expected as many rows in X as in y. Got {len(encoded)} and {len(targets)}.")
        weight: Array | None = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, encoded, dtype=np.float64, ensure_non_negative=True)
            counts = weight > 0
            if not counts.any():
                raise DataError("Expected some sample weights above zero. Got zeros only: there is nothing to learn.")
            encoded, targets, weight = encoded[counts], targets[counts], weight[counts]
        if len(encoded) < (2 if known is None else 1):
            raise DataError(f"Expected at least 2 rows to train on. Got {len(encoded)} sample(s).")
        require_in_domain(spec, encoded, "training rows")
        require_units(spec, encoded, targets)
        targets, moved, most = reconciled(spec, encoded, targets)
        if moved:
            warnings.warn(
                f"Targets of {moved} of {len(targets)} rows do not add up as the rules ask. They were moved to the "
                f"nearest that do, in units of their spread, by up to {most:.3g}, before fitting.",
                AccuracyWarning,
                stacklevel=4,
            )
        return Rows(X, task, encoded, targets, weight)

    def _serve(self, served: ServedModel, rows: Rows, table: Any, columns: Sequence[str], **facts: Any) -> None:
        """Take over a model that was fitted to these rows, and describe it; it reads these columns of the table."""
        self.deployed_ = served
        self.n_features_in_ = len(columns)
        if column_names(rows.table) is not None:
            self.feature_names_in_ = np.asarray(columns, dtype=object)
        usage = served.usage(table, rows.encoded)
        described = describe(rows.spec, rows.encoded, rows.targets, kind=type(self).__name__, usage=usage, **facts)
        served.describe({**described, **rows.task.facts(), "parameters": plain_parameters(self)})

    def _given(self) -> Specification | None:
        """Return the specification that was given, read if it is a file or a text."""
        return None if self.spec is None else Specification.of(self.spec)

    # --- from what is stored

    @classmethod
    def from_record(cls, record: ModelRecord, *, verify: bool = True) -> Self:
        """Rebuild a model; the certificate is checked unless `verify=False` is asked for."""
        if record.rules is None:
            if record.certificate is not None:
                raise CertificateError("The model folder has a certificate.json, but no rules.yaml.")
            raise ModelFormatError("The model folder has no rules.yaml, which also states inputs and outputs.")
        spec = Specification.from_yaml(record.rules + "\n")
        require_kind(record.description, spec)
        model = cls(spec, **stored_parameters(cls._get_param_names(), record.description))
        model._deploy(ServedModel.from_record(record, spec, verify=verify))
        return model

    def _deploy(self, served: ServedModel) -> None:
        """Take over a model that was fitted elsewhere."""
        self.deployed_ = served
        self.n_features_in_ = len(served.front.columns or self.specification_.inputs)


def without_rules(spec: Specification) -> Specification:
    """Return the same inputs and outputs with nothing required: the specification of a baseline."""
    return replace(spec, rules=())
