"""SafeNetwork: any backbone, with the head of rules behind its answers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import rebind
from smle.heads.table import certify_head
from smle.networks.backbones import Answers
from smle.networks.certified_head import CertifiedHead
from smle.networks.features import plain_numbers, require_rules
from smle.networks.folders import save_network, weights_of
from smle.networks.onnx import write_network
from smle.networks.quick import Quick, quickly
from smle.networks.units import DataScale
from smle.rules import Specification
from smle.tables import apply_domain_policy, encode_columns, encode_numbers
from smle_check.reading import BACKBONE

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SafeNetwork", "encoded_features", "evaluating", "predicted"]

_FEW_ROWS = 8  # from which no units are read


class SafeNetwork(nn.Module):
    """Any backbone, with a head behind its answers that is proved to obey the rules, whatever the backbone computes.

    `network(features, *inputs)`: features (..., d), in the order of `spec.columns`, are what rules read. The backbone
    maps the further inputs if there are any (images, sequences), or else the features, to an embedding or to answers
    (..., m) in the order of `spec.targets`.

    * In training mode answers are those of the backbone, with their gradients: train as you would without rules.
      Answers that carry no gradient, as in eval mode or under `torch.no_grad`, go through the head: those that the
      rules allow stay, others move to the nearest allowed ones.
    * With `embedding` the network works in the user's units by itself. Features that the backbone reads are
      standardized, and a linear layer turns the embedding into answers. Units come from `example`, from all rows of
      `smle.training.train`, or else from ranges and limits in the rules and the features of the first batch. Further
      inputs reach the backbone as they are. None of it is part of what is proved.

    Args:
        backbone: Any module.
        spec: The rules.
        embedding: Width of what the backbone returns. None: it returns the answers themselves, in the user's units.
        example: (features, targets), tables or arrays, to take units from; for numbers the median of the targets also
            takes the place of answers that are NaN.

    Attributes:
        spec: The rules.
        certificate_: The proof. It is there from the start, and stays while the backbone is trained.
        counts: Answers (rows) that went through the head so far: `rows`, those that were `moved`, and those `replaced`
            because they were NaN, infinite or beyond 1e30.

    Raises:
        RuleError: If there are no rules.
        ContradictionError: If rules contradict each other; names an input where they do.
        NotCertifiedError: If they leave no float32 number somewhere, or no safe answer is proved; names the input.
    """

    backbone: nn.Module

    def __init__(
        self, backbone: nn.Module, spec: Specification, *, embedding: int | None = None, example: Any = None
    ) -> None:
        super().__init__()
        require_rules(spec)
        if embedding is not None and embedding < 1:
            raise ValueError(f"Expected an embedding of at least one unit. Got {embedding}.")
        self._set_up(backbone, spec, embedding)
        if example is None:
            self.head = CertifiedHead(self._certified(None))
        else:
            features, targets = example if isinstance(example, tuple) and len(example) == 2 else (example, None)
            self.set_units(features, targets)

    @classmethod
    def of(
        cls, backbone: nn.Module, spec: Specification, certificate: Certificate, *, embedding: int | None = None
    ) -> Self:
        """Return a network with a head that was certified before."""
        network = cls.__new__(cls)
        nn.Module.__init__(network)
        network._set_up(backbone, spec, embedding)
        network.head = CertifiedHead(certificate)
        return network

    def _set_up(self, backbone: nn.Module, spec: Specification, embedding: int | None) -> None:
        self.spec = spec
        self.backbone = backbone if embedding is None else Answers(backbone, embedding, DataScale.of_rules(spec))
        self.is_fresh = embedding is not None  # units may still be taken from data
        self._quick = Quick.of(self.backbone)

    def _certified(self, targets: npt.NDArray[np.float64] | None) -> Certificate:
        default = scale = None
        if targets is not None and self.spec.output_kind == "numbers":
            default, scale = np.median(targets, axis=0), targets.std(axis=0)
        return certify_head(self.spec, default=default, scale=scale, files={"rules": self.spec.to_yaml().encode()})

    @property
    def certificate_(self) -> Certificate:
        """The proof, for whatever the backbone answers."""
        return self.head.certificate

    @property
    def counts(self) -> dict[str, int]:
        """How answers fared so far."""
        return self.head.counts

    def set_units(self, features: Any, targets: Any = None) -> None:
        """Take units from data, before training: tables, arrays or tensors of features (..., d) and targets (..., m).

        Raises:
            DataError: If these are not the columns of the rules.
        """
        wanted = None if targets is None else _encoded_targets(self.spec, targets)
        if isinstance(self.backbone, Answers):
            self.backbone.set_units(DataScale.of_data(self.spec, encoded_features(self.spec, features), wanted))
        self.head, self.is_fresh = CertifiedHead(self._certified(wanted)), False

    # --- answers

    def forward(self, features: Tensor, *inputs: Any) -> Tensor:
        """Return answers in the shape of the backbone's: (..., m), or (...) for one output.

        Raises:
            TypeError: If features are no tensor of real numbers, or the backbone takes other arguments.
            ValueError: If shapes do not fit the rules.
            DataError: If features are whole numbers that float64 cannot hold.
        """
        self._require_features(features)
        numbers = plain_numbers(features)
        if self.is_fresh and self.training:
            self._look(numbers)
        parts: dict[str, Any] = self._modules  # attributes are slow to look up
        answers = None if inputs else quickly(self._quick, parts["backbone"], numbers)
        if answers is None:
            features = features.clone()  # rules are about what was passed: a module may work in place on it
            answers = self._called(numbers, inputs)
        answers, flat = self._columns(features, answers)
        head: CertifiedHead = parts["head"]
        if self.training and answers.requires_grad and torch.is_grad_enabled():  # modules may ask for gradients inside
            head.served.require_shapes(features, answers)
            return answers[..., 0] if flat else answers
        served = head.forward(features, answers)  # without hooks for all modules: nothing comes behind a head
        return served[..., 0] if flat else served

    def _require_features(self, features: object) -> None:
        columns = self.spec.columns
        if not isinstance(features, Tensor):
            raise TypeError(
                f"Expected features as a tensor (..., {len(columns)}). Got {type(features).__name__}. Pass tables "
                "and arrays to network.predict."
            )
        if features.ndim < 2 or features.shape[-1] != len(columns):
            raise ValueError(
                f"Expected features of shape (..., {len(columns)}), the columns {', '.join(columns)}, as the first "
                f"argument. Got {tuple(features.shape)}. Pass further inputs of the backbone after them: "
                "network(features, *inputs)."
            )

    def _look(self, features: Tensor) -> None:
        """Take the units of the inputs from the first batch; those of the outputs stay as the rules tell them."""
        if torch.compiler.is_compiling() or features.is_meta or not isinstance(self.backbone, Answers):
            return
        self.is_fresh = False
        rows = features.detach().reshape(-1, features.shape[-1])
        if len(rows) >= _FEW_ROWS:
            self.backbone.set_units(DataScale.of_data(self.spec, rows.cpu().double().numpy(), None))

    def answers(self, features: Tensor, *inputs: Any) -> tuple[Tensor, bool]:
        """Return what the backbone answers (..., m), and whether it left out the last dimension."""
        answers = None if inputs else quickly(self._quick, self.backbone, features)
        return self._columns(features, self._called(features, inputs) if answers is None else answers)

    def _columns(self, features: Tensor, answers: Any) -> tuple[Tensor, bool]:
        """Return answers with a column for each output, and whether the backbone left out the last dimension."""
        targets = self.spec.targets
        if not isinstance(answers, Tensor) or not answers.is_floating_point():
            got = answers.dtype if isinstance(answers, Tensor) else type(answers).__name__
            raise ValueError(
                f"Expected the module to return a tensor of floats, a column each for {', '.join(targets)}. Got {got}. "
                "Wrap the module so that it does."
            )
        flat = len(targets) == 1 and answers.ndim == features.ndim - 1
        return (answers[..., None] if flat else answers), flat

    def _called(self, features: Tensor, inputs: tuple[Any, ...]) -> Any:
        """Return what the backbone makes of its further inputs, if there are any, or else of the features."""
        inner, given = self.backbone, inputs
        if not inputs:
            own = inner.backbone if isinstance(inner, Answers) else inner
            kind = next((p.dtype for p in own.parameters() if p.is_floating_point()), torch.float32)
            x = inner.standardize(features) if isinstance(inner, Answers) else features
            given = (x.to(kind),)
        try:
            return inner(*given)
        except TypeError as error:
            raise _explained(inner, given, error) if inputs else error from None

    def reading_features(self) -> nn.Module:
        """Return the module that maps features to answers."""
        return (
            nn.Sequential(self.backbone.standardize, self.backbone)
            if isinstance(self.backbone, Answers)
            else (self.backbone)
        )

    def predict(self, X: Any, *inputs: Any, out_of_domain: str = "raise") -> npt.NDArray[np.float32]:
        """Return answers to a table or an array, in eval mode: (n,) for one output, else (n, m).

        Args:
            X: A table with the inputs that the rules name, or an array of the encoded inputs (n, d).
            inputs: Further arguments of the backbone.
            out_of_domain: "raise", or "clip" or "warn": rows outside the domain are answered, and the rules hold at the
                input that is clamped to it.
        """
        return predicted(self, self.spec, X, inputs, out_of_domain)

    # --- files

    def head_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the numbers of the head by the names of the model file."""
        return self.head.arrays()

    def certified(self, files: dict[str, bytes] | None = None) -> Certificate:
        """Return the certificate, bound to files and the backbone's numbers if files are given."""
        if files is None:
            return self.certificate_
        own = {name: value for name, value in weights_of(self).items() if name.startswith(BACKBONE)}
        return rebind(self.certificate_, files, backbone=tensors_of(own))

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> Certificate:
        """Write a model folder: backbone, head, rules, certificate; `smle.load(folder, backbone=module)` reads it.

        A certified model that is there is replaced with `overwrite=True`.
        """
        return save_network(self, folder, overwrite=overwrite)

    def to_onnx(
        self, path: str | PathLike[str], *, example: Tensor | tuple[Tensor, ...] | None = None, monitor: bool = True
    ) -> None:
        """Write network and head as one ONNX file, with `<path>.certificate.json` beside it.

        Args:
            path: The file to write.
            example: Arguments of the backbone for two rows or more, where it reads something else than the features.
            monitor: Add the outputs `in_domain` and `active_rules`.
        """
        with evaluating(self):
            write_network(self, path, example=example, monitor=monitor)

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self.is_fresh = False
        super()._load_from_state_dict(*arguments, **options)

    def extra_repr(self) -> str:
        """Return what is proved, and how answers fared so far."""
        seen = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{len(self.certificate_.proved)} statements proved; {seen}"


def _explained(module: nn.Module, given: tuple[Any, ...], error: TypeError) -> TypeError:
    """Return an error that names the arguments of a backbone, where it was called with others."""
    own = module.backbone if isinstance(module, Answers) else module
    assert isinstance(own, nn.Module)
    signature = inspect.signature(own.forward)
    try:
        signature.bind(*given)
    except TypeError:
        return TypeError(
            f"Expected the arguments of the backbone after the features: {type(own).__name__} takes {signature}. Got "
            f"{len(given)}: network(features, {', '.join(type(value).__name__ for value in given)})."
        )
    return error


def encoded_features(spec: Specification, X: Any) -> npt.NDArray[Any]:
    """Return encoded inputs (..., d) of a table by the names of its columns, or of an array or tensor by their places.

    Raises:
        DataError: If there are not the columns of the rules, values are missing or no numbers, or a whole number would
            be rounded.
    """
    return encode_columns(spec, plain_tensor(X) if isinstance(X, Tensor) else X)


def plain_tensor(X: Tensor) -> npt.NDArray[Any]:
    """Return the numbers of a tensor, unchanged; formats that NumPy lacks in float32."""
    if X.is_floating_point() and X.dtype is not torch.float64:
        X = X.to(torch.float32)
    return X.numpy(force=True)


def _encoded_targets(spec: Specification, y: Any) -> npt.NDArray[np.float64]:
    """Return targets (n, m) of a table, or of a tensor or array (..., m)."""
    if isinstance(y, Tensor):
        y = plain_tensor(y)
    if isinstance(y, np.ndarray) and y.ndim > 2:
        y = y.reshape(-1, y.shape[-1])
    return encode_numbers(spec, y)


def predicted(
    network: nn.Module, spec: Specification, X: Any, inputs: tuple[Any, ...], out_of_domain: str
) -> npt.NDArray[np.float32]:
    """Return what a network answers to a table or an array, in eval mode."""
    encoded = encoded_features(spec, X)
    apply_domain_policy(spec, encoded.reshape(-1, encoded.shape[-1]), out_of_domain)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with evaluating(network), torch.no_grad():  # not inference_mode: a module may take gradients itself
        served = network(torch.tensor(encoded, device=device), *inputs)
    result: npt.NDArray[np.float32] = served.cpu().numpy()
    return result[..., 0] if len(spec.targets) == 1 and result.ndim == encoded.ndim else result


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put every part into eval mode for a while, and back into its own."""
    modes = [(module, module.training) for module in network.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
