"""`smle.load`: model folders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from smle.errors import ModelFormatError, NotCertifiedError
from smle.estimators.base import SafeEstimator
from smle.estimators.quantiles import SafeQuantileRegressor
from smle.estimators.safe_estimators import SafeClassifier, SafeRegressor
from smle.heads.box.estimators.learned_box import SMLEClassifier, SMLERegressor
from smle.storage import read_record

if TYPE_CHECKING:
    from torch import nn

    from smle.networks.safe_network import SafeNetwork

__all__ = ["KINDS", "load", "nothing_proved", "read_model"]


_MODULES = ("SafeNetwork", "BoxNetwork")  # folders that need a torch module


KINDS: dict[str, type[SafeEstimator]] = {
    kind.__name__: kind
    for kind in (SafeClassifier, SafeQuantileRegressor, SafeRegressor, SMLEClassifier, SMLERegressor)
}


@overload
def load(
    folder: str | PathLike[str], *, backbone: None = None, verify: bool = True, require_certificate: bool = False
) -> SafeEstimator: ...


@overload
def load(
    folder: str | PathLike[str],
    *,
    backbone: nn.Module | Callable[..., Any],
    verify: bool = True,
    require_certificate: bool = False,
) -> SafeNetwork: ...


def load(
    folder: str | PathLike[str],
    *,
    backbone: nn.Module | Callable[..., Any] | None = None,
    verify: bool = True,
    require_certificate: bool = False,
) -> SafeEstimator | SafeNetwork:
    """Load a model folder: an estimator, or a torch network with `backbone`, a module like the stored one.

    The certificate is checked in exact arithmetic, and rules.yaml is compiled again and compared with it, unless
    `verify=False`. A folder without rules has no certificate: it is loaded with a warning that nothing is proved, or
    refused with `require_certificate=True`.

    Raises:
        CertificateError: If the certificate does not fit the files.
        NotCertifiedError: If there are rules but no certificate, or no rules and a certificate is required.
        ModelFormatError: If the folder is not a model folder.
        ValueError: If `require_certificate=True` meets `verify=False`.
    """
    if require_certificate and not verify:
        raise ValueError("require_certificate=True needs verify=True: a certificate that is not checked says nothing.")
    if backbone is not None:
        record = read_record(folder)
        if record.description.get("kind") not in _MODULES:
            raise ModelFormatError(
                f"Expected a folder of a torch module for backbone=. Got '{os.fspath(folder)}', the folder of a "
                f"{record.description.get('kind')}, which needs none. Call smle.load(folder)."
            )
        from smle.corrected.torch_folders import load_network

        return load_network(record, backbone, verify=verify)
    model = read_model(folder, verify=verify)
    if not model.specification_.rules:
        if require_certificate:
            raise NotCertifiedError(nothing_proved(folder))
        warnings.warn(
            nothing_proved(folder) + " Pass require_certificate=True to refuse such folders.", UserWarning, stacklevel=2
        )
    return model


def read_model(folder: str | PathLike[str], *, verify: bool = True) -> SafeEstimator:
    """Load an estimator without the warning of `load` about models without rules."""
    record = read_record(folder)
    kind = KINDS.get(str(record.description.get("kind")))
    if record.description.get("kind") in _MODULES:
        raise ModelFormatError(
            f"'{os.fspath(folder)}' holds the numbers of a torch module ({record.description.get('backbone')}), and no "
            "code. Bring the module: smle.load(folder, backbone=module). Only exported ONNX files run without it."
        )
    if kind is None:
        raise ModelFormatError(f"model.json: unknown kind of model {record.description.get('kind')!r}.")
    return kind.from_record(record, verify=verify)


def nothing_proved(folder: str | PathLike[str]) -> str:
    """Say that nothing is proved about a model without rules."""
    return f"Nothing is proved about the model in '{os.fspath(folder)}': it has no rules and no certificate."
