"""Any model, corrected exactly: limits that rules put on single outputs are proved behind whatever the model answers.

    y = enforce(x, model(x)): answers that the rules allow stay, others move to the nearest allowed number.

Nothing is assumed about the model, which may be a fitted estimator, a pipeline or any function of a table.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.certificates.rules import certify_rules
from smle.errors import DataError, RuleError
from smle.programs import ClipList
from smle.rules import Number, Specification
from smle.tables import apply_domain_policy, encode_inputs

__all__ = ["CorrectedModel", "correct"]

Array = npt.NDArray[Any]


class CorrectedModel:
    """A model with a certified clip list behind it. See `correct`.

    Attributes:
        model: What was given; it is called with tables as they are passed.
        specification_: The rules.
        certificate_: The proof, for whatever the model answers.
        replaced_: How many answers so far were NaN or infinite, and were replaced by the default.
    """

    def __init__(self, model: Any, spec: Specification, certificate: Certificate) -> None:
        self.model, self.specification_, self.certificate_ = model, spec, certificate
        self.replaced_ = 0
        self._enforce = ClipList(certificate)
        self._answer: Callable[[Any], Any] = model.predict if hasattr(model, "predict") else model

    def predict(self, X: Any, *, return_info: bool = False, out_of_domain: str = "raise") -> Any:
        """Return answers that obey the rules: (n,) for one output, else (n, m), in float32.

        Args:
            X: A table with the inputs that the rules name, beside whatever else the model reads.
            return_info: Also return a dict: `moved` (n, m), by how much each answer was moved, and `replaced` (n, m).
            out_of_domain: "raise", or "clip": rows outside the domain are answered, and the rules hold at the input
                that is clamped to it.

        Raises:
            DataError: If the table does not fit the rules, or the model's answers have another shape.
        """
        spec = self.specification_
        encoded = encode_inputs(spec, X)
        apply_domain_policy(spec, encoded, out_of_domain)
        answers = self._answers(X, len(encoded))
        replaced = ~(np.abs(answers) <= 2.0**100)
        if replaced.any():
            self.replaced_ += int(replaced.sum())
            warnings.warn(
                f"{int(replaced.sum())} of {answers.size} answers of the model are NaN, infinite or beyond 1e30: the "
                "default answer, within the rules, takes their place.",
                stacklevel=2,
            )
        served = self._enforce(encoded, answers)
        result = served[:, 0] if len(spec.targets) == 1 else served
        return (result, {"moved": served - answers, "replaced": replaced}) if return_info else result

    def _answers(self, X: Any, rows: int) -> Array:
        """Return the model's own answers (n, m) in float32."""
        targets = self.specification_.targets
        with np.errstate(over="ignore"):
            answers = np.asarray(self._answer(X), dtype=np.float32)
        answers = answers[:, None] if answers.ndim == 1 else answers
        if answers.shape != (rows, len(targets)):
            raise DataError(
                f"Expected answers of shape {(rows, len(targets))}: a column each for {', '.join(targets)}. "
                f"Got {answers.shape}."
            )
        return answers

    def __repr__(self) -> str:
        name = type(self.model).__name__ if hasattr(self.model, "predict") else getattr(self.model, "__name__", "model")
        return f"CorrectedModel({name}, {len(self.certificate_.proved)} limits proved)"


def correct(model: Any, specification: Specification, examples: Any = None) -> Any:
    """Make a model obey rules without training: answers that the rules allow stay, others move to the border.

    A fitted estimator, a pipeline or a function of a table is taken with rules that limit single outputs, constant or
    moving with the inputs, in any number (`0 <= limit <= 0.35 * income`, `limit <= 60000 if ...`); the result is a
    `CorrectedModel`. A torch module is taken with other kinds of rules and needs examples: see
    `smle.assurance.correct`, which returns a network.

    Args:
        model: Fitted estimator (with `predict`), function of a table, or torch module.
        specification: The rules.
        examples: For a torch module inputs that show which outputs occur. For others a table, or None; the median of
            the answers to it takes the place of answers that are NaN or infinite.

    Raises:
        RuleError: If a rule does not limit a single output.
        ContradictionError: If two rules contradict each other; names an input where they do.
        NotCertifiedError: If two rules leave no float32 number between them somewhere; names the input.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from smle.assurance import correct as correct_module

        if examples is None:
            raise TypeError("Expected examples: inputs that show which outputs of the torch module occur.")
        return correct_module(model, specification, examples)
    if not isinstance(specification, Specification):
        raise TypeError(f"Expected a Specification. Got {type(specification).__name__}.")
    if not (callable(model) or hasattr(model, "predict")):
        raise TypeError(f"Expected a model with a method `predict`, or a function. Got {type(model).__name__}.")
    if not all(isinstance(output, Number) for output in specification.outputs):
        raise RuleError("Expected outputs that are numbers. Labels and choices of other models are not corrected yet.")
    files = {"rules": specification.to_yaml().encode()}
    corrected = CorrectedModel(model, specification, certify_rules(specification, files=files))
    if examples is not None:
        answers = corrected._answers(examples, len(encode_inputs(specification, examples)))
        finite = np.where(np.abs(answers) <= 2.0**100, answers, np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            default = np.nan_to_num(np.nanmedian(finite, axis=0))
        certificate = certify_rules(specification, default=default, files=files)
        corrected = CorrectedModel(model, specification, certificate)
    return corrected
