"""What type checkers find. `make types` runs mypy here, where an ignored error that is none fails; nobody calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import Tensor, nn
from typing_extensions import assert_type

import smle
from smle import (
    NetworkClassifier,
    NetworkRegressor,
    SafeClassifier,
    SafeQuantileRegressor,
    SafeRegressor,
    SMLEClassifier,
    SMLERegressor,
    Specification,
)
from smle.corrected import CorrectedModel
from smle.estimators.base import SafeEstimator
from smle.export import load_onnx
from smle.nn import BoxNetwork, SafeNetwork


def wrong_names(spec: Specification, module: nn.Module) -> None:
    print(smle.nosuch)  # type: ignore[attr-defined]
    SafeRegressor(spec, estimatr=None)  # type: ignore[call-arg]
    SafeClassifier(spec, treshold=0.5)  # type: ignore[call-arg]
    SafeQuantileRegressor(spec, quantile=(0.1, 0.9))  # type: ignore[call-arg]
    NetworkRegressor(max_epoch=3)  # type: ignore[call-arg]
    NetworkClassifier(max_epoch=3)  # type: ignore[call-arg]
    SMLERegressor(spec, gated=False)  # type: ignore[call-arg]
    SMLEClassifier(spec, bound="affine")  # type: ignore[call-arg]
    SafeNetwork(module, spec, embeding=3)  # type: ignore[call-arg]
    smle.correct(module, spec, example=3)  # type: ignore[call-overload]
    smle.load("model", backbon=module)  # type: ignore[call-overload]
    SafeRegressor(spec).predict(0, out_of_domian="clip")  # type: ignore[call-overload]


def answers(spec: Specification, table: pd.DataFrame, module: nn.Module, features: Tensor, box: BoxNetwork) -> None:
    number = SafeRegressor(spec)
    assert_type(number.fit(table, table), SafeRegressor)
    assert_type(number.predict(table), npt.NDArray[np.float64])
    assert_type(number.predict(table, return_info=True), tuple[npt.NDArray[Any], dict[str, Any]])
    assert_type(number.predict(table, as_steps=True), npt.NDArray[Any])
    assert_type(SafeClassifier(spec).predict(table), npt.NDArray[Any])
    assert_type(SafeClassifier(spec).predict_proba(table), npt.NDArray[np.float64])
    loaded = smle.load("model")
    assert_type(loaded, SafeEstimator)
    assert_type(loaded.predict(table), npt.NDArray[Any])
    assert_type(smle.project(loaded), SafeEstimator)
    corrected = smle.correct("model.onnx", spec)
    assert_type(corrected, CorrectedModel)
    assert_type(corrected.predict(table), npt.NDArray[Any] | pd.DataFrame)
    assert_type(load_onnx("model.onnx").predict(table), pd.DataFrame)
    network = smle.correct(module, spec)
    assert_type(network, SafeNetwork)
    assert_type(network(features), Tensor)
    assert_type(network.predict(table), npt.NDArray[np.float32])
    assert_type(smle.project(box), BoxNetwork)
