"""scikit-learn door: estimators whose fitted models are certified, and `load`."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from datetime import datetime, timezone
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

import smle
from smle.assurance import DeployedNetwork, arrangement_of, certify, require_same_rules, state_of
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import rebind
from smle.errors import DataError, ModelFormatError, NotCertifiedError
from smle.guarantees.cells import Arrangement, arrange
from smle.guarantees.nearest import nearest_outputs
from smle.nn.backbones import MLP
from smle.nn.gauge import Frame
from smle.nn.head import DeployedHead, Gate
from smle.nn.network import SafeNetwork
from smle.rules import Number, NumericInput, Specification
from smle.storage import FORMAT, VERSION, ModelRecord, read_record, write_record
from smle.tables import column_names, encode_inputs, encode_numbers, in_domain, require_in_domain, table_digest
from smle.training.loop import History, TrainingOptions, train

__all__ = ["SafeRegressor", "load"]

Array = npt.NDArray[np.float64]
_CHUNK = 65536  # rows per call of the network, so that memory stays flat


class SafeRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A multi-layer perceptron that provably obeys rules, for numeric outputs.

    `fit` ends with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Arguments:
        specification: The rules: a Specification, the path of a rules file, or YAML text. None: no rules.
        hidden: Widths of the hidden ReLU layers.
        embedding: Width of the layer that is clipped; the last one before the heads.
        bounds: `fixed` (after the linear layer of the embedding as general as any constants) or `affine`.
        learning_rate: Step size of Adam.
        batch_size: Rows per step.
        max_epochs: Upper limit of epochs.
        patience: Epochs without a better validation loss before training stops.
        validation_share: Share of the rows that is held out for early stopping.
        enforce_targets: Train on the nearest targets that obey the rules.
        random_state: Seed, for repeatable results.
        progress: Show a progress bar; None: only on a terminal.
    """

    def __init__(
        self,
        specification: Specification | str | PathLike[str] | None = None,
        *,
        hidden: tuple[int, ...] = (64, 64),
        embedding: int = 32,
        bounds: str = "fixed",
        learning_rate: float = 2e-3,
        batch_size: int = 128,
        max_epochs: int = 500,
        patience: int = 20,
        validation_share: float = 0.2,
        enforce_targets: bool = True,
        random_state: Any = None,
        progress: bool | None = None,
    ) -> None:
        self.specification = specification
        self.hidden = hidden
        self.embedding = embedding
        self.bounds = bounds
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_share = validation_share
        self.enforce_targets = enforce_targets
        self.random_state = random_state
        self.progress = progress

    # --- fitting

    def fit(self, X: Any, y: Any) -> SafeRegressor:
        """Train on a table and its targets, and certify the result.

        Raises:
            DataError: If the data do not fit the rules' columns and ranges.
            ContradictionError: If the rules cannot be satisfied together.
            NotCertifiedError: If no proof was found.
        """
        spec = self._specification(X, y)
        encoded, targets = encode_inputs(spec, X), encode_numbers(spec, y)
        if len(encoded) != len(targets):
            raise DataError(f"Expected as many rows in X as in y. Got {len(encoded)} and {len(targets)}.")
        if len(encoded) < 2:
            raise DataError(f"Expected at least 2 rows to train on. Got {len(encoded)}.")
        require_in_domain(spec, encoded, "training rows")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        arrangement = arrange(spec)
        enforced = nearest_outputs(spec, encoded, targets) if self.enforce_targets and spec.rules else targets
        network = self._network(spec, arrangement, encoded, enforced, seed)
        options = TrainingOptions(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            patience=self.patience,
            validation_share=self.validation_share,
            progress=self.progress,
        )
        scale = torch.as_tensor(_spread(enforced), dtype=torch.float32)

        def loss(predicted: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return (((predicted - wanted) / scale) ** 2).mean()

        wanted = torch.tensor(enforced, dtype=torch.float32)
        self.history_: History = train(
            network, torch.tensor(encoded), wanted, loss=loss, options=options, seed=seed, title="training"
        )
        self.specification_ = spec
        self.n_features_in_ = len(spec.inputs)
        names = column_names(X)
        if names is not None:
            self.feature_names_in_ = np.asarray([item.name for item in spec.inputs], dtype=object)
        self._flat = np.ndim(y) == 1
        self.description_ = self._describe(spec, encoded, targets, seed)
        self._certify(network)
        return self

    def _specification(self, X: Any, y: Any) -> Specification:
        given = self.specification
        if given is None:
            return _without_rules(X, y)
        spec = given if isinstance(given, Specification) else Specification.from_yaml(given)
        if not all(isinstance(output, Number) for output in spec.outputs):
            raise DataError("SafeRegressor predicts numbers. Expected `outputs` in the rules. Got labels or choices.")
        return spec

    def _network(
        self, spec: Specification, arrangement: Arrangement, X: npt.NDArray[Any], y: Array, seed: int
    ) -> SafeNetwork:
        shift, scale = X.mean(axis=0, dtype=np.float64), _spread(X)
        frame = Frame(shift, scale, y.mean(axis=0), _spread(y))
        prefer = _means_per_cell(spec, arrangement, X, y)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = MLP(self.hidden, self.embedding, shift=shift, scale=scale)
            return SafeNetwork(
                backbone,
                spec,
                embedding=self.embedding,
                bounds=self.bounds,
                frame=frame,
                prefer=prefer,
                arrangement=arrangement,
            )

    def _describe(self, spec: Specification, X: npt.NDArray[Any], y: Array, seed: int) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": type(self).__name__,
            "architecture": {"backbone": "mlp", "hidden": list(self.hidden), "embedding": self.embedding},
            "inputs": [item.name for item in spec.inputs],
            "columns": list(spec.columns),
            "targets": list(spec.targets),
            "flat": self._flat,
            "provenance": {
                "data_sha256": table_digest(X, y),
                "rows": len(X),
                "seed": seed,
                "command": " ".join(sys.argv[:1] + sys.argv[1:])[:1000],
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "versions": {
                    "smle": smle.__version__,
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "numpy": np.__version__,
                },
            },
            "scores": {},
        }

    def _certify(self, network: SafeNetwork) -> None:
        self.network_ = DeployedNetwork.of(network)
        self._arrangement = network.arrangement
        self._weights = state_of(self.network_)
        self.certificate_: Certificate | None = None
        if self.specification_.rules:
            self.certificate_ = certify(network, tensors=tensors_of(self._weights), files=self._bound_files())

    def _bound_files(self) -> dict[str, bytes]:
        return {
            "model": ModelRecord.description_bytes(self.description_),
            "rules": self.specification_.to_yaml().encode(),
        }

    def set_scores(self, scores: dict[str, float]) -> None:
        """Note scores (of this model or of its plain twin) in the description; the certificate is bound anew."""
        check_is_fitted(self, "network_")
        self.description_ = {**self.description_, "scores": {**self.description_["scores"], **scores}}
        if self.certificate_ is not None:
            self.certificate_ = rebind(self.certificate_, self._bound_files())

    # --- using

    def predict(self, X: Any, *, return_info: bool = False, out_of_domain: str = "raise") -> Any:
        """Return predictions as float64 numbers that hold the certified float32 values exactly.

        Arguments:
            X: Table with the rules' input columns.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain` and `clipped_share`.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`. The rules are
                guaranteed inside; outside they hold at the clamped input.
        """
        check_is_fitted(self, "network_")
        spec = self.specification_
        encoded = encode_inputs(spec, X)
        _apply_domain_policy(spec, encoded, out_of_domain)
        features = torch.as_tensor(encoded)
        with torch.inference_mode():
            parts = [self.network_(features[i : i + _CHUNK]) for i in range(0, len(features), _CHUNK)]
        outputs = torch.cat(parts).numpy().astype(np.float64)
        result = outputs[:, 0] if self._flat and outputs.shape[1] == 1 else outputs
        return (result, self._information(encoded)) if return_info else result

    def _information(self, encoded: npt.NDArray[Any]) -> dict[str, Any]:
        spec, arrangement, features = self.specification_, self._arrangement, torch.as_tensor(encoded)
        with torch.inference_mode():
            head = self.network_.head
            x = head.domain(features)
            bits = head.gate.active(x).numpy()
            z = self.network_.backbone(features.to(torch.float32))
            lower, upper = head.limits(x.to(torch.float32))
            clipped = (~((z >= lower) & (z <= upper))).to(torch.float32).mean(dim=1).numpy()
        names = []
        for row in bits:
            on = {g for g, bit in zip(arrangement.gated, row, strict=True) if bit}
            on |= set(range(len(arrangement.regions))) - set(arrangement.gated)
            rules = sorted({rule for region in on for rule in arrangement.rules[region]})
            names.append(tuple(spec.rules[rule].name for rule in rules))
        return {"active_rules": names, "in_domain": in_domain(spec, encoded).all(axis=1), "clipped_share": clipped}

    # --- storing

    def record(self) -> ModelRecord:
        """Return the model as plain data.

        Raises:
            NotCertifiedError: If the model has rules but no certificate.
        """
        check_is_fitted(self, "network_")
        if self.specification_.rules and self.certificate_ is None:
            raise NotCertifiedError("This model was loaded without verification. Load it with verify=True to save it.")
        return ModelRecord(self._weights, self.description_, self.specification_.to_yaml(), self.certificate_)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a model folder: weights, description, rules, certificate."""
        write_record(self.record(), folder)

    @classmethod
    def from_record(cls, record: ModelRecord, *, verify: bool = True) -> SafeRegressor:
        """Rebuild a model; the certificate is checked unless `verify=False` is asked for."""
        description = record.description
        try:
            architecture = description["architecture"]
            model = cls(record.rules, hidden=tuple(architecture["hidden"]), embedding=architecture["embedding"])
            model._flat = bool(description["flat"])
        except (KeyError, TypeError):
            raise ModelFormatError("model.json: expected the architecture of the backbone.") from None
        spec = Specification.from_yaml(record.rules or "")
        model.specification_, model.description_ = spec, description
        model.n_features_in_ = len(spec.inputs)
        model.certificate_ = None
        model._arrangement = arrange(spec)
        if spec.rules:
            certificate = record.certificate
            if certificate is None:
                raise NotCertifiedError("The model folder has rules but no certificate.json.")
            if verify:
                certificate.check()
                require_same_rules(certificate, spec)
                model.certificate_ = certificate
            model._arrangement = arrangement_of(certificate, spec)
        model.network_ = _rebuild(spec, model._arrangement, architecture, record.weights)
        model._weights = record.weights
        return model


def load(folder: str | PathLike[str], *, verify: bool = True) -> SafeRegressor:
    """Load a model folder.

    The certificate is checked in exact arithmetic, and rules.yaml is compiled again and compared with it.

    Raises:
        CertificateError: If the certificate does not fit the files.
        ModelFormatError: If the folder is not a model folder.
    """
    return SafeRegressor.from_record(read_record(folder), verify=verify)


def _rebuild(
    spec: Specification, arrangement: Arrangement, architecture: dict[str, Any], weights: dict[str, npt.NDArray[Any]]
) -> DeployedNetwork:
    try:
        zeros = np.zeros(len(spec.columns))
        backbone = MLP(architecture["hidden"], architecture["embedding"], shift=zeros, scale=zeros)
        head = DeployedHead(
            spec, arrangement, embedding=architecture["embedding"], affine="bounds.lower_slope" in weights,
            passthrough="heads.passthrough" in weights,
        )  # fmt: skip
        state = {name: torch.from_numpy(value) for name, value in weights.items()}
        prefix = "backbone."
        backbone.load_state_dict({k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)})
        head.load_state_dict({k: v for k, v in state.items() if not k.startswith(prefix)})
    except (KeyError, TypeError, RuntimeError) as error:
        raise ModelFormatError(f"The weights do not fit the architecture in model.json: {error}") from None
    return DeployedNetwork(backbone, head)


def _spread(values: npt.NDArray[Any]) -> Array:
    """Return the standard deviation of each column, 1 where it is zero."""
    spread = values.std(axis=0, dtype=np.float64)
    return np.where(spread > 0, spread, 1.0)


def _means_per_cell(spec: Specification, arrangement: Arrangement, X: npt.NDArray[Any], y: Array) -> Array:
    """Return the mean targets of each cell (cells, m); the overall mean where a cell has no rows."""
    gate = Gate(spec, arrangement)
    features = torch.as_tensor(X)
    cell = np.zeros(len(X), dtype=int) if gate.is_trivial else gate(features).numpy()
    means = np.tile(y.mean(axis=0), (len(arrangement.cells), 1))
    for c in range(len(arrangement.cells)):
        if (cell == c).any():
            means[c] = y[cell == c].mean(axis=0)
    return means


def _without_rules(X: Any, y: Any) -> Specification:
    """Return a specification that only names columns and their observed ranges."""
    names = column_names(X)
    array = np.asarray(X, dtype=np.float64)
    if array.ndim != 2:
        raise DataError(f"Expected a table with two dimensions. Got an array of shape {array.shape}.")
    names = [f"x{i}" for i in range(array.shape[1])] if names is None else names
    from fractions import Fraction

    inputs = []
    for i, name in enumerate(names):
        low, high = float(np.nanmin(array[:, i])), float(np.nanmax(array[:, i]))
        inputs.append(NumericInput(name, Fraction(low), Fraction(high if high > low else low + 1.0)))
    target_names = column_names(y) or [f"y{i}" for i in range(1 if np.ndim(y) == 1 else np.shape(y)[1])]
    return Specification(tuple(inputs), tuple(Number(n) for n in target_names), ())


def _apply_domain_policy(spec: Specification, encoded: npt.NDArray[Any], policy: str) -> None:
    if policy == "raise":
        if spec.rules:
            require_in_domain(spec, encoded, "rows")
    elif policy == "warn":
        import warnings

        outside = int((~in_domain(spec, encoded).all(axis=1)).sum())
        if outside:
            warnings.warn(f"{outside} of {len(encoded)} rows lie outside the domain of the rules.", stacklevel=3)
    elif policy != "clip":
        raise ValueError(f"Expected out_of_domain to be 'raise', 'warn' or 'clip'. Got {policy!r}.")


def without_rules(spec: Specification) -> Specification:
    """Return the same inputs and outputs with nothing required: the specification of a plain twin."""
    return replace(spec, rules=())
