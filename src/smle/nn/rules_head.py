"""The head of rules in torch: the certified program in NumPy, behind the answers of any module."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.certificates.document import Certificate, arrays_of
from smle.programs import Program, program_of
from smle_check.reading import BACKBONE

__all__ = ["RulesHead"]


class RulesHead(nn.Module):
    """(features, answers of a model) -> answers that obey the rules, by the certified program in NumPy.

    Answers that the rules allow pass as they are, and so do their gradients. Others are replaced, and have none. There
    is nothing to train, and nothing to change: all numbers are those of the certificate.

    Shapes: features (..., d) in float32 or float64, answers (..., m) in any float format, outputs (..., m) in float32.
    """

    program: Program

    def __init__(self, certificate: Certificate) -> None:
        super().__init__()
        self.certificate = certificate
        self.program = program_of(certificate)
        stated = certificate.document["specification"]
        self._widths = len(stated["inputs"]), len(stated["outputs"])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the prepared program; a copy prepares its own."""
        return {name: value for name, value in self.__dict__.items() if name != "program"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.program = program_of(self.certificate)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, features: Tensor, answers: Tensor) -> Tensor:
        """Return the outputs, on the device of the answers.

        Raises:
            ValueError: If there is not one row of features, with the columns of the rules, for each answer.
            TypeError: If features are no floats.
        """
        self.require_shapes(features, answers)
        given = answers if answers.dtype is torch.float32 else answers.to(torch.float32)
        X, t = features.detach().cpu().numpy(), given.detach().cpu().numpy()
        if answers.ndim == 2:
            served = torch.from_numpy(self.program(X, t))
        else:
            columns, targets = self._widths
            served = torch.from_numpy(self.program(X.reshape(-1, columns), t.reshape(-1, targets))).reshape(
                answers.shape
            )
        if not answers.is_cpu:
            served = served.to(answers.device)
        return torch.where(served == given, given, served) if given.requires_grad else served

    def require_shapes(self, features: Tensor, answers: Tensor) -> None:
        """Raise ValueError unless there is one row of features, with the columns of the rules, for each answer."""
        columns, targets = self._widths
        shape = answers.shape
        if shape[-1:] != (targets,) or features.shape != (*shape[:-1], columns):
            raise ValueError(
                f"Expected features of shape (..., {columns}) and answers of shape (..., {targets}), in the order of "
                f"the rules' inputs and outputs. Got {tuple(features.shape)} and {tuple(answers.shape)}."
            )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the numbers of the head by their names in the model file."""
        return arrays_of({k: v for k, v in self.certificate.tensors.items() if not k.startswith(BACKBONE)})
