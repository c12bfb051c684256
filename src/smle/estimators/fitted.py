"""What an estimator can do once fitted or loaded: predict, count, explain, store."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from smle.certificates.document import Certificate
from smle.errors import DataError
from smle.estimators.inputs import plain_table
from smle.monitor import Edges, Usage
from smle.rules import Specification
from smle.serving.served import Answered, Served
from smle.storage import ModelRecord, write_record
from smle.tables import ASIDE, SetAside, as_table, column_names, raw_values

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FittedModel"]

Array = npt.NDArray[np.float64]


class FittedModel:
    """A model in front and a certified head behind it, with rules and description; `deployed_` serves."""

    deployed_: Served
    n_features_in_: int
    out_of_domain: str
    _task: Any

    @property
    def specification_(self) -> Specification:
        """The rules."""
        return self.deployed_.specification_

    @property
    def certificate_(self) -> Certificate | None:
        """The proof that the exact checker accepted; None without rules, or if loaded unchecked."""
        return self.deployed_.certificate_

    @property
    def description_(self) -> dict[str, Any]:
        """The contents of model.json."""
        return self.deployed_.description_

    @property
    def served_(self) -> dict[str, int]:
        """How many rows a head of rules served so far, by how: `kept`, `moved`, `near`, `replaced` or `safe`.

        Unreadable rows that `predict` was told to set aside are counted as `set aside`, for any head.
        """
        return self.deployed_.served_

    @property
    def has_head_of_rules(self) -> bool:
        """Whether rules are enforced on the answers themselves rather than by a learned box."""
        return self.deployed_.head is not None and self.deployed_.reads_answers

    @property
    def text_inputs(self) -> tuple[str, ...]:
        """Columns that the estimator inside reads as text."""
        return self.deployed_.front.texts

    @property
    def columns_read(self) -> frozenset[str]:
        """Columns of a table that the rules name or the estimator inside reads."""
        return frozenset(item.name for item in self.specification_.inputs) | frozenset(
            self.deployed_.front.columns or ()
        )

    # --- using

    def _given_rows(self, X: Any, *, bad_rows: str = "raise") -> Any:
        """Return a table unchanged, and anything without columns as a table, or as an array that fits the model.

        If bad rows are to be set aside, values of an array are left to the reader. Raises DataError for another number
        of columns.
        """
        if "deployed_" not in self.__dict__:  # scikit-learn's own check takes longer than a prediction
            check_is_fitted(self, "deployed_")
        if hasattr(type(X), "columns"):  # hasattr on a lazy table would look for the columns
            return X
        table = as_table(X)
        if column_names(table) is not None:
            return table
        array = plain_table(table, self.specification_) if bad_rows == "raise" else raw_values(table)
        if array.ndim != 2:
            raise DataError(f"Expected a table, or an array (rows, columns). Got an array of shape {array.shape}.")
        if array.shape[1] != self.n_features_in_:
            raise DataError(
                f"X has {array.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input."
            )
        return array

    def answer(
        self, X: Any, out_of_domain: str | None = None, *, bad_rows: str = "raise", count: bool = True
    ) -> Answered:
        """Like `predict`, but also return the answers of the model in front, and how each row was served.

        Args:
            X: Table with the input columns.
            out_of_domain: `raise`, `warn` or `clip`; by default as the parameter says.
            bad_rows: `raise` or `set aside`: unreadable rows are left out, with a reason each (`aside`).
            count: Count the rows in `served_`.
        """
        X = self._given_rows(X, bad_rows=bad_rows)
        policy = self.out_of_domain if out_of_domain is None else out_of_domain
        return self.deployed_.answer(X, policy, bad_rows=bad_rows, count=count, stacklevel=4)

    def without_bad_rows(self, X: Any) -> tuple[Any, SetAside]:
        """Return the readable rows of a table, and what is wrong with the others; see `predict`."""
        rows, aside = self.deployed_.without_bad_rows(self._given_rows(X, bad_rows=ASIDE))
        return (rows if len(aside) else X), aside

    def own_answers(self, X: Any) -> Array:
        """Return the answers of the estimator or network inside (rows, m), before a head of rules."""
        return self.answer(X, "raise", count=False).answers.astype(np.float64)

    def usage(self, X: Any, edges: Edges | None = None, *, bad_rows: str = "raise") -> Usage:
        """Count over the rows of a table which rules apply, what lies outside, and what the head does.

        Args:
            X: Table with the rules' input columns.
            edges: Bins of the input columns; by default those of the training rows, if model.json has them.
            bad_rows: `raise`, or `set aside`: count unreadable rows (`Usage.set_aside`).
        """
        X = self._given_rows(X, bad_rows=bad_rows)
        if edges is None:
            known = self.description_.get("training")
            edges = {} if known is None else Usage.from_json(known).edges
        return self.deployed_.usage(X, edges, bad_rows=bad_rows)

    def raw_outputs(self, X: Any) -> Array:
        """Return the certified numbers (rows, m) themselves, exactly in float64: predictions, logits or scores."""
        return self.answer(X, "raise").served.astype(np.float64)

    def chances(self, found: Answered) -> Array | None:
        """Return the probabilities of what was served (rows, m), in the order of the rules' outputs; None for numbers.

        What the rules forbid at an input has 0, a label that they force 1.
        """
        settled = self.deployed_.settled(found.encoded)
        chances: Array | None = self._task.chances(found.served.astype(np.float64), settled)
        return chances

    def explain_margins(self) -> list[dict[str, Any]]:
        """Return for every proved statement its rule, where it holds, what holds and by which margin."""
        check_is_fitted(self, "description_")
        if self.certificate_ is None:
            return []
        return [
            {"rule": p.rule, "where": p.where, "holds": p.sentence, "margin": float(p.margin)}
            for p in self.certificate_.proved
        ]

    def to_torch(self) -> nn.Module:
        """Return a torch module with the weights of a fitted network, features (batch, d) -> outputs (batch, m).

        The module is a copy, in eval mode: changing it affects neither this model nor its certificate. The last bits of
        its answers may differ. If the network reads further columns of the table, call `module(features, wide)`; `wide`
        (batch, D) holds everything it reads.

        Raises:
            ModelFormatError: If an estimator is inside.
            MissingDependencyError: If torch is not installed.
        """
        from smle.heads.box.network.assurance import network_of

        return network_of(self.record(), self.specification_)

    # --- storing

    def set_scores(self, scores: dict[str, Any]) -> None:
        """Record scores (of this model, its baseline, ...) in the description, and bind the certificate to it."""
        check_is_fitted(self, "description_")
        known = self.description_
        self.deployed_.describe({**known, "scores": {**known["scores"], **scores}})

    def record(self) -> ModelRecord:
        """Return the model as plain data. Raises NotCertifiedError if it was loaded without verification."""
        check_is_fitted(self, "description_")
        return self.deployed_.record()

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write a model folder: weights, description, rules, certificate. `overwrite` replaces a certified model."""
        write_record(self.record(), folder, overwrite=overwrite)

    def to_onnx(self, path: str | PathLike[str], *, monitor: bool = True, stacked: bool = False) -> None:
        """Write the model as ONNX, with `<path>.certificate.json` beside it; `write_onnx` explains the options."""
        from smle.export import write_onnx

        write_onnx(self.record(), path, monitor=monitor, stacked=stacked)
