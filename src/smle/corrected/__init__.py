"""Any model, corrected exactly: rules are proved behind whatever the model answers.

    y = enforce(x, model(x)): answers that the rules allow stay, others move to the nearest allowed one.

Nothing is assumed about the model: a fitted estimator, a pipeline, an ONNX file or any function of a table.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from smle.certificates.rules import certify_rules
from smle.corrected.answers import answers_of, stored_form
from smle.corrected.model import WIDE, Answered, CorrectedModel, count_ways
from smle.programs import program_of
from smle.rules import Specification

__all__ = [
    "Answered",
    "CorrectedModel",
    "answers_of",
    "certify_rules",
    "correct",
    "count_ways",
    "program_of",
    "stored_form",
]


def correct(model: Any, specification: Specification, examples: Any = None) -> Any:
    """Make a model obey rules without training: answers that the rules allow stay, others move to the border.

    A fitted estimator, a pipeline, an ONNX file or a function of a table is taken with rules that limit single outputs,
    constant or moving with the inputs, in any number (`0 <= limit <= 0.35 * income`, `limit <= 60000 if ...`); the
    result is a `CorrectedModel`. Around a torch module it is one as well, a `smle.corrected.network.CorrectedModule`,
    called as `network(features, *inputs)`: further inputs go to the module in the place of the features.

    Args:
        model: Fitted estimator (with `predict`), path of an ONNX file, function of a table, or torch module.
        specification: The rules.
        examples: A table, or None; the median of the answers to it takes the place of answers that are NaN or
            infinite. For a torch module also features (n, d), or a tuple of features and further inputs.

    Raises:
        RuleError: If a rule does not limit a single output.
        ContradictionError: If two rules contradict each other; names an input where they do.
        NotCertifiedError: If two rules leave no float32 number between them somewhere; names the input.
        DataError: If the answers to the examples are no numbers, or have another shape.
    """
    if not isinstance(specification, Specification):
        raise TypeError(f"Expected a Specification. Got {type(specification).__name__}.")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from smle.corrected.network import correct_module

        return correct_module(model, specification, examples)
    if not (callable(model) or hasattr(model, "predict")):
        raise TypeError(f"Expected a model with a method `predict`, or a function. Got {type(model).__name__}.")
    files = {"rules": specification.to_yaml().encode()}
    corrected = CorrectedModel(model, specification, certify_rules(specification, files=files))
    if examples is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            answers = corrected.answered(examples, "clip").answers
        finite = np.where(np.abs(answers) <= WIDE, answers, np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            default = np.nan_to_num(np.nanmedian(finite, axis=0))
        corrected = CorrectedModel(model, specification, certify_rules(specification, default=default, files=files))
    return corrected
