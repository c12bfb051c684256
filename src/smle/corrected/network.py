"""The torch door: modules with a certified head behind them, their folders, and how they are loaded again.

A folder holds numbers, rules and the certificate, no code: whoever loads it brings the module.
"""

from __future__ import annotations

import smle.nn  # first: where torch is missing it says what to install

# isort: split
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import smle
from smle.assurance import CorrectedNetwork, DeployedNetwork, RulesHead, Seal, certify, state_of
from smle.certificates.agreement import cells_of, require_same_rules
from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import rebind
from smle.certificates.rules import certify_rules
from smle.errors import DataError, ModelFormatError, NotCertifiedError, RuleError
from smle.nn.head import DeployedHead
from smle.nn.network import Rescaled, SafeNetwork
from smle.rules import Specification
from smle.storage import FORMAT, VERSION, ModelRecord, write_record
from smle.tables import apply_domain_policy, column_names, encode_inputs
from smle_check.reading import BACKBONE

__all__ = ["KINDS", "CertifiedNetwork", "CorrectedModule", "correct_module", "load_network", "save_network"]

KINDS = ("CorrectedModule", "SafeNetwork")
_WIDE = 2.0**100  # answers beyond are replaced


class CorrectedModule(CorrectedNetwork):
    """A torch module with a certified head behind its answers. See `smle.correct`.

    `network(features, *inputs)`: the module maps the further inputs if there are any (images, sequences), or else the
    features, to answers (..., m). What is returned obeys the rules at the features, which are clamped to their ranges.
    The module is the given one, in its own mode, and may be trained further: the proof does not depend on it, and
    gradients pass where an answer is allowed.

    Attributes:
        specification_: The rules.
        certificate_: The proof, for whatever the module answers.
        counts: Answers (rows) in eval mode so far: `rows`, those that were `moved`, and those `replaced` because they
            were NaN, infinite or beyond 1e30.
    """

    def __init__(self, model: nn.Module, spec: Specification, head: RulesHead) -> None:
        super().__init__(model, head)
        self.specification_ = spec
        self.counts = {"rows": 0, "moved": 0, "replaced": 0}

    @property
    def certificate_(self) -> Certificate:
        """The proof, for whatever the module answers."""
        return self.head.certificate

    def forward(self, features: Tensor, *inputs: Any) -> Tensor:
        """Return answers that obey the rules, in the shape of the module's: (..., m), or (...) for one output.

        Raises:
            ValueError: If shapes do not fit the rules.
        """
        features = features if features.is_floating_point() else features.to(torch.float64)
        answers, flat = self._answers(features, inputs)
        served: Tensor = self.head(features, answers)
        if not self.training:
            self._count(answers.detach(), served.detach())
        return served[..., 0] if flat else served

    def _answers(self, features: Tensor, inputs: tuple[Any, ...]) -> tuple[Tensor, bool]:
        """Return the module's answers (..., m), and whether it gave them without the last dimension."""
        if inputs:
            answers = self.backbone(*inputs)
        else:
            kind = next((p.dtype for p in self.backbone.parameters() if p.is_floating_point()), torch.float32)
            answers = self.backbone(features.to(kind))
        targets = self.specification_.targets
        if not isinstance(answers, Tensor) or not answers.is_floating_point():
            got = answers.dtype if isinstance(answers, Tensor) else type(answers).__name__
            raise ValueError(
                f"Expected the module to return a tensor of floats, a column each for {', '.join(targets)}. Got {got}. "
                "Wrap the module so that it does."
            )
        flat = len(targets) == 1 and answers.ndim == features.ndim - 1
        return (answers[..., None] if flat else answers), flat

    def _count(self, answers: Tensor, served: Tensor) -> None:
        wrong = ~(answers.to(torch.float32).abs() <= _WIDE).reshape(-1, answers.shape[-1]).all(dim=1)
        other = (served != answers.to(torch.float32)).reshape(-1, answers.shape[-1]).any(dim=1)
        self.counts["rows"] += len(wrong)
        self.counts["moved"] += int((other & ~wrong).sum())
        self.counts["replaced"] += int(wrong.sum())

    def predict(self, X: Any, *inputs: Any, out_of_domain: str = "raise") -> npt.NDArray[np.float32]:
        """Return answers to a table or an array, in eval mode: (n,) for one output, else (n, m).

        Args:
            X: A table with the inputs that the rules name, or an array of the encoded inputs (n, d).
            inputs: Further arguments of the module.
            out_of_domain: "raise", or "clip" or "warn": rows outside the domain are answered, and the rules hold at the
                input that is clamped to it.
        """
        return _predicted(self, X, inputs, out_of_domain)

    def to_onnx(
        self, path: str | PathLike[str], *, example: Tensor | tuple[Tensor, ...] | None = None, monitor: bool = True
    ) -> None:
        """Write module and head as one ONNX file, with `<path>.certificate.json` beside it.

        Args:
            path: The file to write.
            example: Arguments of the module for two rows or more, where it reads something else than the features.
            monitor: Add the outputs `in_domain` and `active_rules`.
        """
        from smle.export.network import write_deployed

        with _evaluating(self):
            write_deployed(self, self.specification_, path, self.certificate_, example=example, monitor=monitor)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a model folder: the module's numbers, the head, rules and certificate. `smle.load` needs the module."""
        description = _description("CorrectedModule", self.backbone, self.specification_)
        weights = state_of(self)
        rules = self.specification_.to_yaml()
        files = {"model": ModelRecord.description_bytes(description), "rules": rules.encode()}
        own = {name: value for name, value in weights.items() if name.startswith(BACKBONE)}
        certificate = rebind(self.certificate_, files, backbone=tensors_of(own))
        write_record(ModelRecord(weights, description, rules, certificate), folder)

    def extra_repr(self) -> str:
        """Return what is proved, and how answers fared so far."""
        seen = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{len(self.certificate_.proved)} statements proved; {seen}"


class CertifiedNetwork(DeployedNetwork):
    """A safe network from a folder: backbone and certified heads, with nothing left to train."""

    specification_: Specification
    certificate_: Certificate

    def predict(self, X: Any, *inputs: Any, out_of_domain: str = "raise") -> npt.NDArray[np.float32]:
        """Return answers to a table or an array: (n,) for one output, else (n, m)."""
        return _predicted(self, X, inputs, out_of_domain)


def correct_module(model: nn.Module, spec: Specification, examples: Any = None) -> CorrectedModule:
    """Do what `smle.correct` does, for a torch module."""
    if not spec.rules:
        raise RuleError("Expected rules: there are none, so there is nothing to correct.")
    head = RulesHead(certify_rules(spec, files={"rules": spec.to_yaml().encode()}))
    network = CorrectedModule(model, spec, head)
    if examples is None:
        return network
    features, *inputs = examples if isinstance(examples, tuple) else (examples,)
    answers = _raw(network, _encoded(spec, features), tuple(inputs))
    known = np.where(np.abs(answers) <= _WIDE, answers, np.nan).reshape(-1, answers.shape[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns of NaN alone
        default, scale = np.nan_to_num(np.nanmedian(known, axis=0)), np.nan_to_num(np.nanstd(known, axis=0))
    certificate = certify_rules(spec, default=default, scale=scale, files={"rules": spec.to_yaml().encode()})
    return CorrectedModule(model, spec, RulesHead(certificate))


# --- folders


def save_network(network: SafeNetwork, folder: str | PathLike[str]) -> Certificate:
    """Write a model folder of a safe network: backbone, heads, rules, certificate; return the certificate.

    Raises:
        NotCertifiedError: If there are no rules, or one cannot be proved.
    """
    spec = network.spec
    if not spec.rules:
        raise NotCertifiedError("This network has no rules, so there is nothing to prove. Save its state_dict instead.")
    backbone = network.backbone.backbone if isinstance(network.backbone, Rescaled) else network.backbone
    assert isinstance(backbone, nn.Module)
    description, rules = _description("SafeNetwork", backbone, spec), spec.to_yaml()
    files = {"model": ModelRecord.description_bytes(description), "rules": rules.encode()}
    certificate = certify(network, files=files)
    write_record(ModelRecord(state_of(DeployedNetwork.of(network)), description, rules, certificate), folder)
    return certificate


def load_network(
    record: ModelRecord, backbone: nn.Module, *, verify: bool = True
) -> CorrectedModule | CertifiedNetwork:
    """Return the network of a folder; the module gets the stored numbers.

    Raises:
        ModelFormatError: If the numbers are not those of such a module.
        CertificateError: If the certificate does not fit the files.
        NotCertifiedError: If there is none.
    """
    certificate = record.certificate
    if record.rules is None or certificate is None:
        raise NotCertifiedError("The model folder has no certificate.json, or no rules.yaml.")
    spec = Specification.from_yaml(record.rules + "\n")
    if verify:
        certificate.check()
        require_same_rules(certificate, spec)
    state = {name: torch.from_numpy(value.copy()) for name, value in record.weights.items()}
    own = {name.removeprefix(BACKBONE): value for name, value in state.items() if name.startswith(BACKBONE)}
    program = certificate.document["program"]
    try:
        if program["head"] == "rules":
            backbone.load_state_dict(own)
            return CorrectedModule(backbone, spec, RulesHead(certificate)).eval()
        units = len(state["bounds.lower"])
        inner = Rescaled(backbone, units) if "rescale.scale" in own else backbone
        inner.load_state_dict(own)
        hidden = sorted(name for name in state if name.startswith("bounds.hidden.") and name.endswith(".bias"))
        head = DeployedHead(
            spec,
            cells_of(certificate, spec),
            embedding=units,
            affine=program["bounds"] == "affine",
            hidden=[len(state[f"bounds.hidden.{i}.bias"]) for i in range(len(hidden))],
            passthrough="heads.passthrough" in state,
            nan_safe_clip=program["clip"] == "where",
        )
        head.load_state_dict({name: value for name, value in state.items() if not name.startswith(BACKBONE)})
    except (KeyError, RuntimeError) as error:
        raise ModelFormatError(
            f"Expected backbone= to be a module like the stored one ({record.description.get('backbone')}). Its "
            f"numbers do not fit: {error}"
        ) from None
    network = CertifiedNetwork(inner, head)
    network.specification_ = spec
    network.certificate_ = certificate.watching(Seal(network, certificate.tensors).changed)
    return network


def _description(kind: str, backbone: nn.Module, spec: Specification) -> dict[str, Any]:
    for name, value in backbone.state_dict().items():
        if not isinstance(value, Tensor) or value.dtype is torch.bfloat16:
            what = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ModelFormatError(f"Expected tensors that can be stored. Got '{name}' as {what}. Call model.float().")
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "backbone": f"{type(backbone).__module__}.{type(backbone).__qualname__}",
        "inputs": [item.name for item in spec.inputs],
        "columns": list(spec.columns),
        "targets": list(spec.targets),
        "provenance": {
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": {
                "smle": smle.__version__, "python": platform.python_version(), "torch": torch.__version__,
                "numpy": np.__version__,
            },
        },
        "scores": {},
    }  # fmt: skip


# --- predicting


def _encoded(spec: Specification, X: Any) -> npt.NDArray[Any]:
    """Return encoded inputs (..., d) of a table by the names of its columns, or of a tensor or array as it is."""
    if column_names(X) is not None:
        return encode_inputs(spec, X)
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
    array = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    if array.ndim < 2 or array.shape[-1] != len(spec.columns):
        raise DataError(
            f"Expected features of shape (rows, {len(spec.columns)}), the columns {', '.join(spec.columns)}. Got "
            f"{array.shape}."
        )
    return array


def _raw(network: CorrectedModule, encoded: npt.NDArray[Any], inputs: tuple[Any, ...]) -> npt.NDArray[np.float64]:
    """Return the module's own answers (..., m)."""
    with _evaluating(network), torch.no_grad():
        answers, _ = network._answers(torch.tensor(encoded, device=_device(network)), inputs)
    return np.asarray(answers.to(torch.float64).cpu().numpy())


def _predicted(
    network: CorrectedModule | CertifiedNetwork, X: Any, inputs: tuple[Any, ...], out_of_domain: str
) -> npt.NDArray[np.float32]:
    spec = network.specification_
    encoded = _encoded(spec, X)
    apply_domain_policy(spec, encoded.reshape(-1, encoded.shape[-1]), out_of_domain)
    with _evaluating(network), torch.inference_mode():
        served = network(torch.tensor(encoded, device=_device(network)), *inputs)
    result: npt.NDArray[np.float32] = served.cpu().numpy()
    return result[..., 0] if len(spec.targets) == 1 and result.ndim == encoded.ndim else result


def _device(network: nn.Module) -> torch.device:
    return next((p.device for p in network.parameters()), torch.device("cpu"))


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Put every part into eval mode for a while, and back into its own."""
    modes = [(module, module.training) for module in network.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
