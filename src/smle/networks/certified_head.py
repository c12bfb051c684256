"""A certified head in torch: its NumPy program behind any module."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn

import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.certificates.document import Certificate, arrays_of
from smle.heads.contract import AsksOnce
from smle.heads.table import program_of
from smle.networks.operator import serve
from smle.networks.served_heads import ServedHead, head_digest, looked_up
from smle.tables import WHOLE_FLOAT64
from smle_check.reading import BACKBONE

__all__ = ["CertifiedHead"]


class CertifiedHead(nn.Module):
    """(features, what a module computes) -> answers that obey the rules, by the certified program in NumPy.

    A head of rules reads answers; those that the rules allow pass unchanged. A box reads embeddings. Nothing can be
    trained or changed: all numbers are those of the certificate, and hooks are refused.

    Gradients are those of the program: kept answers pass them on, moved ones pass on what the binding rules leave, and
    features get them where the allowed answers depend on features.

    Shapes: features (..., d), answers (..., m) or embeddings (..., n) in any float format, outputs (..., m) in float32.

    Attributes:
        certificate: The proof.
        counts: Rows answered so far: `rows`, those `moved`, and those `replaced` because they were NaN, infinite or
            beyond 1e30.
    """

    def __init__(self, certificate: Certificate) -> None:
        super().__init__()
        self.certificate = certificate
        self.counts = {"rows": 0, "moved": 0, "replaced": 0}
        self._set_up()

    def _set_up(self) -> None:
        certificate = self.certificate
        program = program_of(certificate)
        stated = certificate.document["specification"]
        outputs = len(stated["outputs"])
        if not isinstance(program, AsksOnce):
            raise TypeError(
                f"Expected a head that asks the model once per row. Got '{certificate.kind}', which asks at other "
                "inputs, too. Serve it with smle.correct(function, spec)."
            )
        self.served = ServedHead(
            program,
            head_digest(certificate),
            widths=(len(stated["inputs"]), program.width, outputs),
            is_large=any(abs(Fraction(item[end])) > WHOLE_FLOAT64 for item in stated["inputs"] for end in _ENDS),
            counts=self.counts if program.reads_answers else None,
            groups=looked_up(certificate),
            certified=lambda: certificate,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the compiled program; a copy compiles its own."""
        return {name: value for name, value in self.__dict__.items() if name != "served"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle, once the checker accepts its certificate."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.certificate.check()
        self._set_up()

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the head, named as in the model file."""
        return arrays_of({k: v for k, v in self.certificate.tensors.items() if not k.startswith(BACKBONE)})

    @property
    def program(self) -> AsksOnce:
        """The program in NumPy."""
        return self.served.program

    def forward(self, features: Tensor, answers: Tensor) -> Tensor:
        """Return the outputs, on the device of the answers. Raises as `serve` does."""
        served = self.served
        if features.requires_grad and not served.moves:
            features = features.detach()
        given = answers if answers.dtype is torch.float32 else answers.to(torch.float32)
        return serve(features, given, None, served.key)

    def register_forward_hook(self, hook: Callable[..., Any], **options: Any) -> NoReturn:
        """Refuse: the result of a hook would be served instead of what is proved."""
        raise _hooked()

    def register_forward_pre_hook(self, hook: Callable[..., Any], **options: Any) -> NoReturn:
        """Refuse: a hook could change the features that the rules read."""
        raise _hooked()


_ENDS = ("lower", "upper")


def _hooked() -> TypeError:
    return TypeError(
        "Expected no hooks on a certified head: they could change what is proved. Register them on the network, where "
        "the result of a hook counts as your own computation behind the head, or on its backbone."
    )
