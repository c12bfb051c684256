"""Fitted and loaded estimators: read rows, predict numbers or classes, count, explain, store."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import check_is_fitted

from smle.certificates.document import Certificate
from smle.errors import DataError
from smle.estimators.bases import ClassifierMixin, RegressorMixin
from smle.estimators.class_tasks import LabelTask, Options
from smle.estimators.tasks import Numbers
from smle.monitor import Edges, Usage
from smle.rules import Specification
from smle.serving.served import Answered, Served
from smle.storage import ModelRecord, write_record
from smle.tables import ASIDE, Reader, SetAside, as_table, column_names, encode_numbers, raw_values
from smle.tables.values import plain_array, read_numbers

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ClassAnswers", "FittedModel", "NumberAnswers", "checked_numbers", "plain_table"]

Array = npt.NDArray[np.float64]


def plain_table(X: Any, spec: Specification) -> Any:
    """Return tables with column names unchanged, and anything else as a checked two-dimensional array.

    Raises ValueError if it is sparse, complex, empty or one-dimensional, or has infinities, NaN without a stand-in, or
    integers that would be rounded.
    """
    X = as_table(X)
    if column_names(X) is not None:
        return X
    X = plain_array(X)
    if not (spec.one_hot or spec.dates):
        stands_in = any(item.missing is not None for item in spec.inputs)
        return checked_numbers(X, "allow-nan" if stands_in else True, spec)
    try:
        array = np.asarray(X, dtype=object)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.ndim != 2:
        raise DataError(f"Expected a table: rows with {len(spec.inputs)} input columns each. Got {type(X).__name__}.")
    return array


def checked_numbers(X: Any, finite: Any, spec: Specification | None = None) -> npt.NDArray[Any]:
    """Return an array of numbers. Raises DataError for values that only NumPy reads as numbers, or would round."""
    checked: npt.NDArray[Any] = check_array(X, dtype=[np.float64, np.float32], ensure_all_finite=finite)
    if id(checked) == id(X):  # floats, not copied
        return checked
    raw = raw_values(X)
    if spec is not None and len(spec.inputs) == raw.shape[1]:
        Reader(spec).read(raw)
    else:
        for place, values in enumerate(raw.T):
            _, faults = read_numbers(str(place), values, truth=True, noun="Column")
            if faults:
                raise DataError(faults[0].message)
    return checked


class FittedModel:
    """A fitted model with a certified head behind it: `deployed_` serves both and has the rules and the description."""

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
        """The certificate that the exact checker accepted; None without rules, or if the model was loaded unchecked."""
        return self.deployed_.certificate_

    @property
    def description_(self) -> dict[str, Any]:
        """The contents of model.json."""
        return self.deployed_.description_

    @property
    def served_(self) -> dict[str, int]:
        """The number of rows served so far by a head of rules: `kept`, `moved`, `near`, `replaced` and `safe`.

        `set aside` counts the unreadable rows that `predict` set aside, for any head.
        """
        return self.deployed_.served_

    @property
    def has_head_of_rules(self) -> bool:
        """Whether a head enforces the rules on the answers themselves, rather than a learned box."""
        return self.deployed_.head is not None and self.deployed_.reads_answers

    @property
    def text_inputs(self) -> tuple[str, ...]:
        """Columns that the estimator inside reads as text."""
        return self.deployed_.front.texts

    @property
    def columns_read(self) -> frozenset[str]:
        """Columns of a table that the rules name or the estimator inside reads."""
        return frozenset({item.name for item in self.specification_.inputs}.union(self.deployed_.front.columns or ()))

    # --- using

    def _given_rows(self, X: Any, *, bad_rows: str = "raise") -> Any:
        """Return tables unchanged, and anything else as a table, or as an array that fits the model.

        If bad rows are to be set aside, the reader checks the values of an array later. Raises DataError for another
        number of columns.
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
            out_of_domain: `raise`, `warn` or `clip`; by default the parameter of the estimator.
            bad_rows: `raise`, or `set aside`: unreadable rows are left out, and `aside` has the reason for each.
            count: Count the rows in `served_`.
        """
        X = self._given_rows(X, bad_rows=bad_rows)
        policy = self.out_of_domain if out_of_domain is None else out_of_domain
        return self.deployed_.answer(X, policy, bad_rows=bad_rows, count=count, stacklevel=4)

    @overload
    def predict(
        self, X: Any, *, return_info: Literal[False] = False, out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> npt.NDArray[Any]: ...

    @overload
    def predict(
        self, X: Any, *, return_info: Literal[True], out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]: ...

    def predict(
        self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> Any:
        """Return labels as 0/1 (rows, m), the chosen options (rows,), or numbers.

        Args:
            X: Table with the rules' input columns, and any others the model inside reads.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain`, and how each row was served
                (`served`, `moved`, `replaced`), or for a learned box `clipped_share`.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; by default the parameter
                of the estimator. The rules are guaranteed inside the domain; outside they hold at the clamped input.
            bad_rows: What to do with rows that cannot be read (an unknown category, a missing value, text instead of a
                number): `raise`, or `set aside`: give such rows NaN, or None where answers are not floats, and answer
                the others in place. `set_aside` of the dict has the reason for each, by row number from 0; `served_`
                counts them.
        """
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        return found.returned(self._task.predictions(found.served), return_info)

    def without_bad_rows(self, X: Any) -> tuple[Any, SetAside]:
        """Return the readable rows of a table, and what is wrong with the others, as `predict` sets them aside."""
        rows, aside = self.deployed_.without_bad_rows(self._given_rows(X, bad_rows=ASIDE))
        return (rows if len(aside) else X), aside

    def own_answers(self, X: Any) -> Array:
        """Return the answers of the estimator or network inside (rows, m), before a head of rules."""
        return self.answer(X, "raise", count=False).answers.astype(np.float64)

    def usage(self, X: Any, edges: Edges | None = None, *, bad_rows: str = "raise") -> Usage:
        """Count, over the rows of a table, which rules apply, what lies outside the domain, and what the head does.

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
        """Return the certified numbers (rows, m): predictions, logits or scores, held exactly by float64.

        Rows are not counted.
        """
        return self.answer(X, "raise", count=False).served.astype(np.float64)

    def chances(self, found: Answered) -> Array | None:
        """Return the probabilities of the answers served (rows, m), in the order of the rules; None for numbers.

        What the rules forbid at an input gets 0, and a label that they force gets 1.
        """
        settled = self.deployed_.settled(found.encoded)
        chances: Array | None = self._task.chances(found.served.astype(np.float64), settled)
        return chances

    def explain_margins(self) -> list[dict[str, Any]]:
        """Return every proved statement: its `rule`, `where` it applies, what `holds`, and by which `margin`."""
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
        from smle.corrected.torch_folders import network_of

        return network_of(self.record(), self.specification_)

    # --- storing

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


class NumberAnswers(RegressorMixin, FittedModel):
    """A fitted model that answers with numbers."""

    @overload
    def predict(
        self,
        X: Any,
        *,
        return_info: Literal[False] = False,
        out_of_domain: str | None = None,
        bad_rows: str = "raise",
        as_steps: Literal[False] = False,
    ) -> npt.NDArray[np.float64]: ...

    @overload
    def predict(
        self,
        X: Any,
        *,
        return_info: Literal[False] = False,
        out_of_domain: str | None = None,
        bad_rows: str = "raise",
        as_steps: bool,
    ) -> npt.NDArray[Any]: ...

    @overload
    def predict(
        self,
        X: Any,
        *,
        return_info: Literal[True],
        out_of_domain: str | None = None,
        bad_rows: str = "raise",
        as_steps: bool = False,
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]: ...

    def predict(
        self,
        X: Any,
        *,
        return_info: bool = False,
        out_of_domain: str | None = None,
        bad_rows: str = "raise",
        as_steps: bool = False,
    ) -> Any:
        """Return predictions as float64 numbers that hold the certified float32 values exactly.

        Args:
            X: Table with the rules' input columns, and any others the model inside reads.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain`, and how each row was served
                (`served`, `moved`, `replaced`), or for a learned box `clipped_share`.
            as_steps: Return how many steps each answer has, as integers, instead of the nearest float32 numbers.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; by default the parameter
                of the estimator. The rules are guaranteed inside the domain; outside they hold at the clamped input.
            bad_rows: What to do with rows that cannot be read (an unknown category, a missing value, text instead of a
                number): `raise`, or `set aside`: give such rows NaN, or None where answers are not floats, and answer
                the others in place. `set_aside` of the dict has the reason for each, by row number from 0; `served_`
                counts them.
        """
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        result: Any = found.served.astype(np.float64)
        if as_steps:
            grid = self.specification_.grid
            if grid is None:
                raise ValueError("Expected outputs with steps for as_steps=True. Got rules without steps, or none.")
            result = grid.whole(result)
        result = result[:, 0] if self._task.flat and result.shape[1] == 1 else result
        return found.returned(result, return_info)

    def _plain_task(self, spec: Specification, y: Any = None) -> Numbers:
        if spec.output_kind != "numbers":
            kind = type(self).__name__
            raise DataError(f"{kind} predicts numbers. Expected `outputs` in the rules. Got labels or choices.")
        return Numbers(spec, y)


class ClassAnswers(ClassifierMixin, FittedModel):
    """A fitted model that answers with labels or one choice."""

    @property
    def classes_(self) -> Any:
        """The options in sorted order, in the type of y in `fit`; for labels, a list of 0 and 1 for each."""
        return self._task.classes

    def decision_function(
        self, X: Any, *, out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> npt.NDArray[np.float64]:
        """Return the certified logits or scores (rows, m), held exactly by float64.

        Columns are those of `classes_`. For a choice between two options, return the lead of the second (rows,).
        """
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        return np.asarray(found.aligned(self._task.decisions(found.served.astype(np.float64))))

    def predict_proba(
        self, X: Any, *, out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> npt.NDArray[np.float64]:
        """Return probabilities (rows, m), columns as in `classes_`. They always agree with `predict`.

        A label is on if its probability is at least 0.5, or its threshold; the chosen option has the largest. An option
        that the rules forbid at an input gets 0, and the others share the rest as they would without it. A label that
        the rules force there gets 1, one that they forbid 0. Other relations between labels change decisions, not the
        probabilities of single labels. The proof covers predictions, not probabilities. Rows that are set aside (see
        `predict`) get NaN.
        """
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        return np.asarray(found.aligned(self._task.ordered(self.chances(found))))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy as scikit-learn does: for several labels, the share of rows where all are right."""
        return self._share_right(np.all, X, y, sample_weight)

    def label_accuracy(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of single labels that are right, over all labels and rows; for a choice, the accuracy."""
        return self._share_right(np.mean, X, y, sample_weight)

    def _share_right(self, of_row: Callable[..., Any], X: Any, y: Any, weight: Any) -> float:
        check_is_fitted(self, "description_")
        if isinstance(self._task, Options):
            return float(super().score(X, y, weight))
        answers, truth = self.predict(X), check_array(encode_numbers(self.specification_, y))  # refuses no rows
        check_consistent_length(answers, truth, weight)
        right = answers == truth
        return float(np.average(of_row(right, axis=1), weights=weight))

    def _plain_task(self, spec: Specification, y: Any = None) -> LabelTask | Options:
        if spec.output_kind not in ("labels", "choice"):
            raise DataError(
                f"{type(self).__name__} predicts labels, or one choice. Expected `labels` or one of `choices` in the "
                "rules. For mixed kinds of outputs use smle.nn.SafeNetwork."
            )
        return (Options if spec.output_kind == "choice" else LabelTask)(spec, y)
