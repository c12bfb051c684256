"""What an estimator can do once it is fitted or loaded: predict, observe, explain, store."""

from __future__ import annotations

import warnings
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import check_is_fitted

from smle.assurance import CorrectedNetwork, DeployedNetwork, RulesHead, Seal, state_of
from smle.certificates.document import Certificate, shortened, tensors_of
from smle.certificates.issue import rebind
from smle.corrected import Answered, CorrectedModel, count_ways
from smle.errors import DataError, NotCertifiedError
from smle.estimators.inner import usage_of
from smle.estimators.inputs import plain_table
from smle.estimators.observer import Observer
from smle.guarantees import Cells, regions_of
from smle.monitor import Edges, Usage, column_edges
from smle.nn.box_network import BoxNetwork
from smle.programs import WAYS
from smle.rules import Specification
from smle.storage import ModelRecord, write_record
from smle.tables import apply_domain_policy, column_names, encode_inputs
from smle_check.reading import BACKBONE

__all__ = ["FittedModel"]

Array = npt.NDArray[np.float64]
_CHUNK = 65536  # rows per call of the network, so that memory stays flat


class FittedModel:
    """A deployed network, or an estimator behind a head of rules, with rules, certificate and description.

    `corrected_` is the latter in its stored form, and `network_` then is not there.
    """

    specification_: Specification
    certificate_: Certificate | None
    network_: DeployedNetwork | CorrectedNetwork
    corrected_: CorrectedModel
    estimator_: Any
    description_: dict[str, Any]
    n_features_in_: int
    _cells: Cells
    _seal: Seal | None

    def _deploy(self, network: BoxNetwork) -> None:
        """Take over the frozen form of a network."""
        self._cells = network.cells
        self.network_ = DeployedNetwork.of(network)

    @cached_property
    def _totals(self) -> dict[str, int]:
        return dict.fromkeys(WAYS, 0)

    def _deploy_behind(self, backbone: torch.nn.Module, head: RulesHead) -> None:
        """Take over a network that was trained without rules, and the proved step behind its answers."""
        self._cells = regions_of(self.specification_)
        self.network_ = CorrectedNetwork(backbone, head).eval().requires_grad_(False)

    def _bound(self, head: RulesHead) -> Certificate:
        """Return the certificate of a head, bound to this network, description and rules."""
        own = {name: value for name, value in state_of(self.network_).items() if name.startswith(BACKBONE)}
        return rebind(head.certificate, self._bound_files(), backbone=tensors_of(own))

    def _hold(self, certificate: Certificate | None) -> None:
        """Take over a certificate of the network as it is now; changes of the network are noticed from here on."""
        self._seal, self.certificate_ = None, None
        if self.is_corrected:
            self.certificate_ = self.corrected_.certificate_ = certificate
            self.corrected_.description_ = self.description_
        elif certificate is not None:
            self._seal = Seal(self.network_, certificate.tensors)
            self.certificate_ = certificate.watching(self._seal.changed)

    def _require_as_certified(self) -> None:
        """Raise NotCertifiedError if somebody changed the head of the network since it was certified."""
        changed = [] if self._seal is None else self._seal.changed_in(self.network_.head)
        if changed:
            raise NotCertifiedError(
                f"The head of this model was changed after it was certified ({shortened(changed)}), so nothing is "
                "proved about its predictions. Load or fit the model again. To keep what was changed, find the nearest "
                "safe heads: smle.estimators.project_model(model, model.specification_)."
            )

    @property
    def is_corrected(self) -> bool:
        """Whether an estimator is inside, behind a head of rules, and not a network."""
        return hasattr(self, "corrected_")

    @property
    def has_head_of_rules(self) -> bool:
        """Whether rules are enforced on the answers themselves, of an estimator or a network, and not by a box."""
        return bool(self.specification_.rules) and (self.is_corrected or isinstance(self.network_, CorrectedNetwork))

    @property
    def served_(self) -> dict[str, int]:
        """How many rows a head of rules served so far, by how: see `CorrectedModel.served_`."""
        return self.corrected_.served_ if self.is_corrected else self._totals

    @property
    def _units(self) -> int:
        """Width of what the backbone computes: of the embedding, or of the answers."""
        layers = [layer for layer in self.network_.backbone.modules() if isinstance(layer, torch.nn.Linear)]
        return layers[-1].out_features

    @property
    def text_inputs(self) -> tuple[str, ...]:
        """Columns that an estimator inside reads as text."""
        return self.corrected_.model.texts if self.is_corrected else ()

    # --- using

    def _outputs(self, X: Any, out_of_domain: str) -> Answered:
        """Return encoded inputs and the certified float32 outputs (rows, m)."""
        check_is_fitted(self, "description_")
        self._require_as_certified()
        X = plain_table(X, self.specification_)
        if column_names(X) is None and X.shape[1] != self.n_features_in_:
            raise DataError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input."
            )
        if self.is_corrected:
            return self.corrected_.answered(X, out_of_domain, stacklevel=5)
        encoded = encode_inputs(self.specification_, X)
        apply_domain_policy(self.specification_, encoded, out_of_domain)
        found = self._answered(encoded)
        if self.has_head_of_rules:
            count_ways(self._totals, self.specification_, found, stacklevel=5)
        return found

    def _answered(self, encoded: npt.NDArray[Any]) -> Answered:
        """Return what a network makes of encoded rows; behind a box its own answers are what is served."""
        if not isinstance(self.network_, CorrectedNetwork):
            outputs = self._evaluate(encoded)
            return Answered(encoded, outputs, outputs, np.zeros(len(outputs), dtype=np.int8))
        features = torch.tensor(encoded)
        parts = [self.network_.explained(features[i : i + _CHUNK]) for i in range(0, max(len(features), 1), _CHUNK)]
        return Answered(encoded, *(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _evaluate(self, encoded: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        features = torch.tensor(encoded)
        with torch.inference_mode():
            parts = [self.network_(features[i : i + _CHUNK]) for i in range(0, max(len(features), 1), _CHUNK)]
        return torch.cat(parts).numpy()

    def own_answers(self, X: Any) -> Array:
        """Return what the estimator or network inside answers by itself (rows, m), before a head of rules."""
        return self._outputs(X, "raise").answers.astype(np.float64)

    def _information(self, found: Answered) -> dict[str, Any]:
        """Return active rules per row, whether it is in the domain, and what is clipped, or how it was served."""
        if self.is_corrected or isinstance(self.network_, CorrectedNetwork):
            return found.information(self.specification_)
        encoded = found.encoded
        seen = Observer(self.specification_, self.network_).look(encoded)
        titles = np.asarray([rule.name for rule in self.specification_.rules], dtype=object)
        names = [tuple(titles[row].tolist()) for row in seen.active]
        return {"active_rules": names, "in_domain": seen.inside.all(axis=1), "clipped_share": seen.clipped}

    def usage(self, X: Any, edges: Edges | None = None) -> Usage:
        """Count over the rows of a table which rules are on, what lies outside, and how much is clipped.

        Args:
            X: Table with the rules' input columns.
            edges: Bins of the input columns; by default those of the training rows, if model.json has them.
        """
        check_is_fitted(self, "description_")
        if edges is None:
            known = self.description_.get("training")
            edges = {} if known is None else Usage.from_json(known).edges
        X = plain_table(X, self.specification_)
        if self.is_corrected:
            return usage_of(self.corrected_, X, edges)
        return self.usage_of(encode_inputs(self.specification_, X), edges)

    def usage_of(self, encoded: npt.NDArray[Any], edges: Edges | None = None) -> Usage:
        """Count over encoded rows, a chunk at a time; by default in bins of about equal numbers of these rows."""
        edges = column_edges(self.specification_, encoded) if edges is None else edges
        first, *others = (self._usage_of(encoded[i : i + _CHUNK], edges) for i in range(0, len(encoded), _CHUNK))
        return sum(others, first)

    def _usage_of(self, encoded: npt.NDArray[Any], edges: Edges) -> Usage:
        if isinstance(self.network_, CorrectedNetwork):
            return self._answered(encoded).usage(self.specification_, edges)
        seen = Observer(self.specification_, self.network_).look(encoded)
        return Usage.count(self.specification_, encoded, seen, edges, heads=self.network_.head_count)

    def answered(self, X: Any) -> Answered:
        """Return rows with what the model in front of a head of rules answers, and what is served; nobody is."""
        totals = dict(self.served_)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = self._outputs(X, "raise")
        self.served_.update(totals)
        return found

    def raw_outputs(self, X: Any) -> Array:
        """Return the certified numbers (rows, m) themselves: predictions, logits or scores, exact in float64."""
        return self._outputs(X, "raise").served.astype(np.float64)

    def explain_margins(self) -> list[dict[str, Any]]:
        """Return, for every proved statement, its rule, where it holds, what holds and by which margin."""
        check_is_fitted(self, "description_")
        if self.certificate_ is None:
            return []
        self._require_as_certified()
        return [
            {"rule": p.rule, "where": p.where, "holds": p.sentence, "margin": float(p.margin)}
            for p in self.certificate_.proved
        ]

    # --- storing

    def _bound_files(self) -> dict[str, bytes]:
        onnx = self.corrected_.model.data if self.is_corrected else None
        return ModelRecord({}, self.description_, self.specification_.to_yaml(), None, onnx).bound_files()

    def set_scores(self, scores: dict[str, Any]) -> None:
        """Note scores (of this model, its baseline, ...) in the description; the certificate is bound anew."""
        check_is_fitted(self, "description_")
        self.description_ = {**self.description_, "scores": {**self.description_["scores"], **scores}}
        if self.certificate_ is not None:
            self._require_as_certified()
            self._hold(rebind(self.certificate_, self._bound_files()))

    def record(self) -> ModelRecord:
        """Return the model as plain data.

        Raises:
            NotCertifiedError: If the model has rules but was loaded without verification.
        """
        check_is_fitted(self, "description_")
        if self.specification_.rules and self.certificate_ is None:
            raise NotCertifiedError("This model was loaded without verification. Load it with verify=True to save it.")
        if self.is_corrected:
            return self.corrected_.record()
        return ModelRecord(state_of(self.network_), self.description_, self.specification_.to_yaml(), self.certificate_)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a model folder: weights, description, rules, certificate."""
        write_record(self.record(), folder)

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write the model as ONNX, with `<path>.certificate.json` beside it.

        Args:
            path: The file to write.

        Raises:
            MissingDependencyError: If onnx is not installed.
        """
        from smle.export import write_onnx

        write_onnx(self.record(), path)
