"""A certified head in torch: its program in NumPy, behind what any module computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from smle.certificates.document import Certificate
from smle.nn.quick import refuse_tracing
from smle.programs import Box, program_of

__all__ = ["CertifiedHead"]


class CertifiedHead(nn.Module):
    """(features, what a module computes) -> answers that obey the rules, by the certified program in NumPy.

    In front of a head of rules there are answers: those that the rules allow pass as they are, and so do their
    gradients; others are replaced, and have none. In front of a box there are embeddings, and no gradient passes.
    There is nothing to train, and nothing to change: all numbers are those of the certificate.

    Shapes: features (..., d) in float32 or float64, answers (..., m) or embeddings (..., n) in any float format,
    outputs (..., m) in float32.
    """

    def __init__(self, certificate: Certificate) -> None:
        super().__init__()
        self.certificate = certificate
        self._set_up()

    def _set_up(self) -> None:
        self.program = program_of(self.certificate)
        stated = self.certificate.document["specification"]
        width = self.program.units if isinstance(self.program, Box) else len(stated["outputs"])
        self._widths = len(stated["inputs"]), width

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the prepared program; a copy prepares its own."""
        return {name: value for name, value in self.__dict__.items() if name != "program"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a copy, or what was read from a file of pickle, once the checker accepts it."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.certificate.check()
        self._set_up()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, features: Tensor, answers: Tensor) -> Tensor:
        """Do what `serve` does, apart from compilers."""
        return self.serve(features, answers)

    def serve(self, features: Tensor, answers: Tensor) -> Tensor:
        """Return the outputs, on the device of the answers.

        Raises:
            ValueError: If there is not one row of features, with the columns of the rules, for each answer.
            TypeError: If features are no floats.
            RuntimeError: If `torch.jit.trace` records it.
        """
        refuse_tracing()
        self.require_shapes(features, answers)
        given = answers if answers.dtype is torch.float32 else answers.to(torch.float32)
        X, t = features.numpy(force=True), given.numpy(force=True)
        if answers.ndim == 2:
            served = torch.from_numpy(self.program(X, t))
        else:
            columns, width = self._widths
            served = torch.from_numpy(self.program(X.reshape(-1, columns), t.reshape(-1, width)))
            served = served.reshape(*answers.shape[:-1], -1)
        if not answers.is_cpu:
            served = served.to(answers.device)
        if given.requires_grad and not isinstance(self.program, Box):
            return torch.where(served == given, given, served)
        return served

    def require_shapes(self, features: Tensor, answers: Tensor) -> None:
        """Raise ValueError unless there is one row of features, with the columns of the rules, for each answer."""
        columns, width = self._widths
        shape = answers.shape
        if shape[-1:] != (width,) or features.shape != (*shape[:-1], columns):
            raise ValueError(
                f"Expected features of shape (..., {columns}) and answers of shape (..., {width}), in the order of "
                f"the rules' inputs and outputs. Got {tuple(features.shape)} and {tuple(answers.shape)}."
            )
