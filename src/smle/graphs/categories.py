"""HistGradientBoosting with categorical features, rewritten as a pipeline that converters understand.

A node that tests whether a category is in a set becomes a node that compares a sum of 0/1 columns with 1/2. Missing and
unknown categories are zero everywhere. If they go left with the set, the sum is over the other categories, which go
right; else it is over the set, and the children are swapped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.tables.values import is_missing

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["has_categories", "with_encoded_categories"]

Array = npt.NDArray[Any]


def has_categories(model: Any) -> bool:
    """Return whether a fitted model is HistGradientBoosting with categorical features."""
    mask = getattr(model, "is_categorical_", None)
    return type(model).__name__.startswith("HistGradientBoosting") and mask is not None and bool(np.any(mask))


def with_encoded_categories(model: Any, frame: pd.DataFrame) -> Any:
    """Return a pipeline with the same predictions, for one such model or several (one per output)."""
    from sklearn.compose import ColumnTransformer
    from sklearn.decomposition import TruncatedSVD
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    models = list(getattr(model, "estimators_", [model]))
    first = models[0]
    names = np.asarray(frame.columns)
    coded, plain = names[first.is_categorical_].tolist(), names[~first.is_categorical_].tolist()
    known = first._preprocessor.named_transformers_["encoder"].categories_
    categories = [[value for value in values.tolist() if not is_missing(value)] for values in known]
    starts = np.cumsum([0, *map(len, categories)])
    rows: list[Array] = []
    rewritten = [_rewritten(each, starts, rows) for each in models]
    encoder = OneHotEncoder(categories=categories, handle_unknown="ignore", sparse_output=False)
    encoder.fit(_rows_of_all(frame[coded], categories))
    sums = TruncatedSVD(max(1, len(rows)))
    sums.components_ = np.array(rows, dtype=np.float64).reshape(-1, starts[-1]) if rows else np.zeros((1, starts[-1]))
    sums.n_features_in_ = int(starts[-1])
    for each in rewritten:
        _shift(each, len(sums.components_) - len(coded))
    columns = ColumnTransformer([])
    columns.transformers_ = [("sets", Pipeline([("encoder", encoder), ("sums", sums)]), coded)]
    if plain:
        columns.transformers_.append(("numbers", "passthrough", plain))
    inner = rewritten[0]
    if models != [model]:
        inner = copy.copy(model)
        inner.estimators_ = rewritten
    return Pipeline([("columns", columns), ("model", inner)])


def _rows_of_all(frame: pd.DataFrame, categories: list[list[Any]]) -> pd.DataFrame:
    """Return rows that contain every category of every column, to fit an encoder on."""
    import pandas as pd

    most = max(map(len, categories))
    return pd.DataFrame({
        name: [values[min(i, len(values) - 1)] for i in range(most)]
        for name, values in zip(frame.columns, categories, strict=True)
    })  # fmt: skip


def _rewritten(model: Any, starts: Array, rows: list[Array]) -> Any:
    """Return a model without categorical nodes. Append the categories (K,) that each of them sums over to `rows`.

    Nodes for numbers still refer to columns behind the encoded ones.
    """
    result = copy.copy(model)
    result.is_categorical_ = result._preprocessor = None
    result._predictors = []
    for stage in model._predictors:
        result._predictors.append([_tree(tree, starts, rows) for tree in stage])
    return result


def _tree(tree: Any, starts: Array, rows: list[Array]) -> Any:
    other = copy.copy(tree)
    other.nodes = nodes = tree.nodes.copy()
    for i in np.flatnonzero((nodes["is_categorical"] == 1) & (nodes["is_leaf"] == 0)):
        node = nodes[i]
        start, end = starts[node["feature_idx"]], starts[node["feature_idx"] + 1]
        chosen = np.array(list(_members(tree.raw_left_cat_bitsets[node["bitset_idx"]], end - start)), dtype=bool)
        row = np.zeros(starts[-1])
        row[start:end] = ~chosen if node["missing_go_to_left"] else chosen
        if not node["missing_go_to_left"]:
            node["left"], node["right"] = int(node["right"]), int(node["left"])
        node["feature_idx"], node["num_threshold"], node["is_categorical"] = -1 - len(rows), 0.5, 0
        node["missing_go_to_left"] = 1
        rows.append(row)
    return other


def _members(bits: Array, count: int) -> Iterator[bool]:
    for category in range(count):
        yield bool((int(bits[category // 32]) >> (category % 32)) & 1)


def _shift(model: Any, by: int) -> None:
    """Renumber the columns of a rewritten model: sums first, then numbers."""
    for stage in model._predictors:
        for tree in stage:
            column = tree.nodes["feature_idx"]
            tree.nodes["feature_idx"] = np.where(column < 0, -1 - column, column + by)
