"""What the estimators share: encode, train, certify, predict, store."""

from __future__ import annotations

import platform
import sys
import warnings
from dataclasses import replace
from datetime import datetime, timezone
from fractions import Fraction
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

import smle
from smle.assurance import DeployedNetwork, arrangement_of, certify, require_same_rules, state_of
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import rebind
from smle.errors import DataError, ModelFormatError, NotCertifiedError
from smle.guarantees.arrangement import Arrangement
from smle.guarantees.cells import arrange
from smle.nn.backbones import MLP
from smle.nn.gauge import Frame
from smle.nn.head import DeployedHead, Gate
from smle.nn.network import SafeNetwork
from smle.rules import NumericInput, Specification
from smle.storage import FORMAT, VERSION, ModelRecord, write_record
from smle.tables import column_names, encode_inputs, in_domain, require_in_domain, table_digest
from smle.training.batches import split_rows
from smle.training.enforcement import Enforcement, enforcement_of
from smle.training.loop import History, TrainingOptions, train
from smle.training.refit import refit_network

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SafeEstimator", "without_rules"]

Array = npt.NDArray[np.float64]
_CHUNK = 65536  # rows per call of the network, so that memory stays flat


class SafeEstimator(BaseEstimator):  # type: ignore[misc]
    """A multi-layer perceptron that provably obeys rules. See `SafeRegressor` and `SafeClassifier`.

    Args:
        specification: The rules: a Specification, the path of a rules file, or YAML text. None: no rules.
        hidden: Widths of the hidden ReLU layers.
        embedding: Width of the layer that is clipped; the last one before the heads.
        bounds: `fixed` (after the linear layer of the embedding as general as any constants) or `affine`.
        learning_rate: Step size of Adam.
        batch_size: Rows per step.
        max_epochs: Upper limit of epochs.
        patience: Epochs without a better validation loss before training stops.
        validation_share: Share of the rows that is held out for early stopping.
        schedule: Of the learning rate: `plateau`, `cosine` or None.
        enforcement: `gauge` (safe at every step, no solver), `pdcg` (the paper's), `exact`, or an object.
        refit: After training, replace the heads by the safe ones that fit best, if validation improves.
        gate: One head per cell. False: one head for all inputs, as in the paper.
        enforce_targets: Train on the nearest targets that obey the rules.
        checkpoint: File to go on from after an interruption, and to write to after each epoch.
        random_state: Seed, for repeatable results.
        progress: Show a progress bar; None: only on a terminal.
    """

    specification_: Specification
    certificate_: Certificate | None
    network_: DeployedNetwork
    history_: History
    description_: dict[str, Any]

    def __init__(
        self,
        specification: Specification | str | PathLike[str] | None = None,
        *,
        hidden: tuple[int, ...] = (64, 64, 64),
        embedding: int = 64,
        bounds: str = "fixed",
        learning_rate: float = 1e-2,
        batch_size: int = 256,
        max_epochs: int = 500,
        patience: int = 30,
        validation_share: float = 0.2,
        schedule: str | None = "plateau",
        enforcement: str | Enforcement = "gauge",
        refit: bool = True,
        gate: bool = True,
        enforce_targets: bool = True,
        checkpoint: str | PathLike[str] | None = None,
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
        self.schedule = schedule
        self.enforcement = enforcement
        self.refit = refit
        self.gate = gate
        self.enforce_targets = enforce_targets
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.progress = progress

    # --- what kinds of outputs add

    def _read_specification(self, X: Any, y: Any) -> Specification:
        """Return the specification to fit; where none was given, one without rules that fits the data."""
        raise NotImplementedError

    def _encode_targets(self, spec: Specification, y: Any) -> Array:
        """Return the targets (rows, m) that the loss compares with."""
        raise NotImplementedError

    def _enforce(self, spec: Specification, X: npt.NDArray[Any], targets: Array) -> Array:
        """Return the nearest targets that obey the rules."""
        raise NotImplementedError

    def _frame(self, targets: Array) -> tuple[Array, Array]:
        """Return shift and scale (m,) of the outputs."""
        raise NotImplementedError

    def _as_outputs(self, targets: Array) -> Array:
        """Return typical outputs (m,) of rows with these targets: what the center of a cell should be near."""
        raise NotImplementedError

    def _loss(self, targets: Array) -> Any:
        """Return the loss as a function of (outputs, targets)."""
        raise NotImplementedError

    def _refit_loss(self) -> Any:
        """Return the loss of the refit."""
        raise NotImplementedError

    def _facts(self) -> dict[str, Any]:
        """Return further entries for model.json."""
        return {}

    def _restore(self, description: dict[str, Any]) -> None:
        """Take over the entries of `_facts`."""

    # --- fitting

    def fit(self, X: Any, y: Any) -> Self:
        """Train on a table and its targets, and certify the result.

        Raises:
            DataError: If the data do not fit the rules' columns and ranges.
            ContradictionError: If the rules cannot be satisfied together.
            NotCertifiedError: If no proof was found.
        """
        X = plain_table(X, categorical=not self._is_numeric())
        spec = self._read_specification(X, y)
        encoded, targets = encode_inputs(spec, X), self._encode_targets(spec, y)
        if len(encoded) != len(targets):
            raise DataError(f"Expected as many rows in X as in y. Got {len(encoded)} and {len(targets)}.")
        if len(encoded) < 2:
            raise DataError(f"Expected at least 2 rows to train on. Got {len(encoded)} sample(s).")
        require_in_domain(spec, encoded, "training rows")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        arrangement = arrange(spec)
        enforced = self._enforce(spec, encoded, targets) if self.enforce_targets and spec.rules else targets
        enforcement = enforcement_of(self.enforcement)
        network = self._network(spec, arrangement, encoded, enforced, seed, gauge=enforcement.gauge)
        self.history_ = self._train(network, torch.tensor(encoded), enforced, enforcement, seed)
        self.specification_ = spec
        self.n_features_in_ = len(spec.inputs)
        if column_names(X) is not None:
            self.feature_names_in_ = np.asarray([item.name for item in spec.inputs], dtype=object)
        self.description_ = self._describe(spec, encoded, targets, seed)
        self._arrangement = network.arrangement
        self.network_ = DeployedNetwork.of(network)
        self._weights = state_of(self.network_)
        self.certificate_ = None
        if spec.rules:
            self.certificate_ = certify(network, tensors=tensors_of(self._weights), files=self._bound_files())
        return self

    def _train(
        self, network: SafeNetwork, X: torch.Tensor, targets: Array, enforcement: Enforcement, seed: int
    ) -> History:
        """Train, then replace the heads by the safe ones that fit the training rows best, if validation agrees."""
        options = TrainingOptions(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            patience=self.patience,
            validation_share=self.validation_share,
            schedule=self.schedule,
            progress=self.progress,
        )
        y = torch.tensor(targets, dtype=torch.float32)
        kept, held = split_rows(len(X), share=self.validation_share, seed=seed)
        history = train(
            network,
            X[kept],
            y[kept],
            loss=self._loss(targets),
            options=options,
            seed=seed,
            title="training",
            enforcement=enforcement if network.spec.rules else None,
            validation=(X[held], y[held]),
            checkpoint=self.checkpoint,
        )
        if self.refit and network.spec.rules:
            wanted = torch.tensor(targets)
            refit_network(network, X[kept], wanted[kept], loss=self._refit_loss(), validation=(X[held], wanted[held]))
        return history

    def _is_numeric(self) -> bool:
        """Whether all inputs of the given specification are numbers, so that arrays can be checked as such."""
        given = self.specification
        return not isinstance(given, Specification) or not given.one_hot

    def _network(
        self,
        spec: Specification,
        arrangement: Arrangement,
        X: npt.NDArray[Any],
        targets: Array,
        seed: int,
        *,
        gauge: bool,
    ) -> SafeNetwork:
        shift, scale = X.mean(axis=0, dtype=np.float64), spread(X)
        frame = Frame(shift, scale, *self._frame(targets))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = MLP(self.hidden, self.embedding, shift=shift, scale=scale)
            return SafeNetwork(
                backbone,
                spec,
                embedding=self.embedding,
                bounds=self.bounds,
                gate=self.gate,
                gauge=gauge,
                frame=frame,
                prefer=self._preferred(spec, arrangement, X, targets),
                arrangement=arrangement,
            )

    def _preferred(self, spec: Specification, arrangement: Arrangement, X: npt.NDArray[Any], targets: Array) -> Array:
        """Return typical outputs of each cell (cells, m); those of all rows where a cell has none."""
        gate = Gate(spec, arrangement)
        cell = np.zeros(len(X), dtype=int) if gate.is_trivial else gate(torch.tensor(X)).numpy()
        typical = np.tile(self._as_outputs(targets), (len(arrangement.cells), 1))
        for c in np.unique(cell):
            typical[c] = self._as_outputs(targets[cell == c])
        return typical

    def _describe(self, spec: Specification, X: npt.NDArray[Any], targets: Array, seed: int) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": type(self).__name__,
            "architecture": {"backbone": "mlp", "hidden": list(self.hidden), "embedding": self.embedding},
            "inputs": [item.name for item in spec.inputs],
            "columns": list(spec.columns),
            "targets": list(spec.targets),
            "provenance": {
                "data_sha256": table_digest(X, targets),
                "rows": len(X),
                "seed": seed,
                "command": " ".join(sys.argv)[:1000],
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "versions": {
                    "smle": smle.__version__,
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "numpy": np.__version__,
                },
            },
            "scores": {},
            **self._facts(),
        }

    # --- using

    def _outputs(self, X: Any, out_of_domain: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Return encoded inputs and the certified float32 outputs (rows, m)."""
        check_is_fitted(self, "network_")
        X = plain_table(X, categorical=bool(self.specification_.one_hot))
        if column_names(X) is None and X.shape[1] != self.n_features_in_:
            raise DataError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input."
            )
        encoded = encode_inputs(self.specification_, X)
        _apply_domain_policy(self.specification_, encoded, out_of_domain)
        features = torch.tensor(encoded)
        with torch.inference_mode():
            parts = [self.network_(features[i : i + _CHUNK]) for i in range(0, max(len(features), 1), _CHUNK)]
        return encoded, torch.cat(parts).numpy()

    def _information(self, encoded: npt.NDArray[Any]) -> dict[str, Any]:
        """Return active rules per row, whether it is in the domain, and its share of clipped units."""
        spec, arrangement, features = self.specification_, self._arrangement, torch.tensor(encoded)
        with torch.inference_mode():
            head = self.network_.head
            x = head.domain(features)
            bits = head.gate.active(x).numpy()
            z = self.network_.backbone(features.to(torch.float32))
            lower, upper = head.limits(x.to(torch.float32))
            clipped = (~((z >= lower) & (z <= upper))).to(torch.float32).mean(dim=1).numpy()
        always = set(range(len(arrangement.regions))) - set(arrangement.gated)
        names = []
        for row in bits:
            on = always | {g for g, bit in zip(arrangement.gated, row, strict=True) if bit}
            rules = sorted({rule for region in on for rule in arrangement.rules[region]})
            names.append(tuple(spec.rules[rule].name for rule in rules))
        return {"active_rules": names, "in_domain": in_domain(spec, encoded).all(axis=1), "clipped_share": clipped}

    def explain_margins(self) -> list[dict[str, Any]]:
        """Return, for every proved statement, its rule, where it holds, what holds and by which margin."""
        check_is_fitted(self, "network_")
        if self.certificate_ is None:
            return []
        return [
            {"rule": p.rule, "where": p.where, "holds": p.sentence, "margin": float(p.margin)}
            for p in self.certificate_.proved
        ]

    # --- storing

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

    def record(self) -> ModelRecord:
        """Return the model as plain data.

        Raises:
            NotCertifiedError: If the model has rules but was loaded without verification.
        """
        check_is_fitted(self, "network_")
        if self.specification_.rules and self.certificate_ is None:
            raise NotCertifiedError("This model was loaded without verification. Load it with verify=True to save it.")
        return ModelRecord(self._weights, self.description_, self.specification_.to_yaml(), self.certificate_)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a model folder: weights, description, rules, certificate."""
        write_record(self.record(), folder)

    def to_onnx(self, path: str | PathLike[str], *, twin: str | PathLike[str] | None = None) -> None:
        """Write the model as ONNX, with `<path>.certificate.json` beside it.

        Args:
            path: The file to write.
            twin: A folder for Gemm/Relu twins and VNN-LIB properties, for outside verifiers.

        Raises:
            MissingDependencyError: If onnx is not installed.
        """
        from smle.export import write_onnx

        write_onnx(self.record(), path, twin=twin)

    @classmethod
    def from_record(cls, record: ModelRecord, *, verify: bool = True) -> Self:
        """Rebuild a model; the certificate is checked unless `verify=False` is asked for."""
        spec = Specification.from_yaml((record.rules or "") + "\n")
        architecture = _architecture(record.description)
        model = cls(spec, hidden=tuple(architecture["hidden"]), embedding=architecture["embedding"])
        model.specification_, model.description_ = spec, record.description
        model.n_features_in_ = len(spec.inputs)
        model.certificate_ = None
        model._restore(record.description)
        program = None
        if spec.rules:
            certificate = record.certificate
            if certificate is None:
                raise NotCertifiedError("The model folder has rules but no certificate.json.")
            if verify:
                certificate.check()
                require_same_rules(certificate, spec)
                model.certificate_ = certificate
            model._arrangement = arrangement_of(certificate, spec)
            program = certificate.document["program"]
        else:
            model._arrangement = arrange(spec)
        model.network_ = _rebuild(spec, model._arrangement, architecture, program, record.weights)
        model._weights = record.weights
        return model


def without_rules(spec: Specification) -> Specification:
    """Return the same inputs and outputs with nothing required: the specification of a plain twin."""
    return replace(spec, rules=())


def plain_table(X: Any, *, categorical: bool) -> Any:
    """Return tables with column names as they are, and anything else as a checked two-dimensional array.

    Raises:
        ValueError: If it is sparse, complex, empty, one-dimensional, or has NaN or infinities.
    """
    if column_names(X) is not None:
        return X
    if categorical:
        return np.asarray(X, dtype=object)
    return check_array(X, dtype=[np.float64, np.float32])


def observed_inputs(X: Any) -> tuple[NumericInput, ...]:
    """Return inputs named and ranged as in a table of numbers, for models without rules."""
    names = column_names(X)
    array = check_array(X, dtype=np.float64)
    names = [f"x{i}" for i in range(array.shape[1])] if names is None else names
    inputs = []
    for i, name in enumerate(names):
        low, high = float(array[:, i].min()), float(array[:, i].max())
        inputs.append(NumericInput(name, Fraction(low), Fraction(high) if high > low else Fraction(low) + 1))
    return tuple(inputs)


def spread(values: npt.NDArray[Any]) -> Array:
    """Return the standard deviation of each column, 1 where it is zero."""
    deviation = values.std(axis=0, dtype=np.float64)
    return np.where(deviation > 0, deviation, 1.0)


def _architecture(description: dict[str, Any]) -> dict[str, Any]:
    try:
        architecture = description["architecture"]
        hidden, embedding = list(architecture["hidden"]), architecture["embedding"]
        if architecture["backbone"] == "mlp" and all(type(w) is int and w > 0 for w in [*hidden, embedding]):
            return {"hidden": hidden, "embedding": embedding}
    except (KeyError, TypeError):
        pass
    raise ModelFormatError("model.json: expected the architecture of an MLP backbone.")


def _rebuild(
    spec: Specification,
    arrangement: Arrangement,
    architecture: dict[str, Any],
    program: dict[str, Any] | None,
    weights: dict[str, npt.NDArray[Any]],
) -> DeployedNetwork:
    """Rebuild the network; which program runs is what the certificate states, not what the weights suggest."""
    try:
        zeros = np.zeros(len(spec.columns))
        backbone = MLP(architecture["hidden"], architecture["embedding"], shift=zeros, scale=zeros)
        head = DeployedHead(
            spec,
            arrangement,
            embedding=architecture["embedding"],
            affine=program is not None and program["bounds"] == "affine",
            passthrough="heads.passthrough" in weights,
            nan_safe_clip=program is not None and program["clip"] == "where",
        )
        state = {name: torch.from_numpy(value) for name, value in weights.items()}
        prefix = "backbone."
        backbone.load_state_dict({k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)})
        head.load_state_dict({k: v for k, v in state.items() if not k.startswith(prefix)})
    except (KeyError, TypeError, RuntimeError) as error:
        raise ModelFormatError(f"The weights do not fit the architecture in model.json: {error}") from None
    return DeployedNetwork(backbone, head)


def _apply_domain_policy(spec: Specification, encoded: npt.NDArray[Any], policy: str) -> None:
    if policy not in ("raise", "warn", "clip"):
        raise ValueError(f"Expected out_of_domain to be 'raise', 'warn' or 'clip'. Got {policy!r}.")
    if not spec.rules:
        return
    if policy == "raise":
        require_in_domain(spec, encoded, "rows")
    elif policy == "warn":
        outside = int((~in_domain(spec, encoded).all(axis=1)).sum())
        if outside:
            warnings.warn(f"{outside} of {len(encoded)} rows lie outside the domain of the rules.", stacklevel=4)
