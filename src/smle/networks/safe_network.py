"""SafeNetwork: any backbone, followed by a head of rules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.certificates.document import Certificate, tensors_of
from smle.certificates.issue import rebind
from smle.heads.table import certify_head
from smle.networks.backbones import Answers, Function, Quick, as_module, quickly
from smle.networks.certified_head import CertifiedHead
from smle.networks.features import at_positions, kind_of, left_out, plain_numbers, require_mask, require_rules, spread
from smle.networks.folders import save_network, weights_of
from smle.networks.onnx_export import write_network
from smle.networks.predicted import encoded_features, encoded_targets, evaluating, predicted, readable
from smle.networks.units import DataScale
from smle.rules import Specification
from smle.tables import SetAside
from smle_check.reading import BACKBONE

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SafeNetwork"]

_FEW_ROWS = 8  # too few rows to read units from


class SafeNetwork(nn.Module):
    """Any backbone, with a head behind its answers that is proved to obey the rules, whatever the backbone computes.

    `network(features, *inputs, **named)`: the rules read features (..., d), in the order of `spec.columns`. The
    backbone maps the further inputs if there are any (images, sequences, edges of a graph), else the features, to an
    embedding or to answers (..., m) in the order of `spec.targets`. There is one row of features for each answer, or
    for each sequence: features (B, d) with answers (B, T, m) apply to each step.

    * In training mode, answers are those of the backbone, with gradients: train as you would without rules. Answers
      without a gradient, as in eval mode or under `torch.no_grad`, go through the head: those that the rules allow
      stay, others move to the nearest allowed ones.
    * `smle.load` also makes such a network from the folder of a `BoxNetwork`, with the learned box as its head. Then
      the backbone maps to the box's embedding, answers go through the head in every mode, and the box stays as it is.
    * With `embedding`, the network scales itself to the user's units. Features that the backbone reads are
      standardized, and a linear layer turns the embedding into answers. Units come from `example`, from all rows of
      `smle.training.train`, or else from ranges and limits in the rules and the features of the first batch. Further
      inputs reach the backbone unchanged. The proof does not depend on any of this.

    Args:
        backbone: Any module, or a function; for a method of a module, that module is trained.
        spec: The rules.
        embedding: Width of the backbone's output. None: the backbone returns the answers, in the user's units.
        example: (features, targets), tables or arrays, to take units from; for numbers, the median of the targets also
            replaces answers that are NaN.

    Attributes:
        spec: The rules.
        certificate_: The proof. It exists from the start, and stays valid while the backbone is trained.
        counts: Rows that went through the head so far: `rows`, those `moved`, and those `replaced` because they were
            NaN, infinite or beyond 1e30.

    Raises:
        RuleError: If there are no rules.
        ContradictionError: If rules contradict each other; names an input where they do.
        NotCertifiedError: If they leave no float32 number somewhere, or no safe answer is proved; names the input.
    """

    backbone: nn.Module
    __call__: Callable[..., Tensor]

    def __init__(
        self,
        backbone: nn.Module | Callable[..., Any],
        spec: Specification,
        *,
        embedding: int | None = None,
        example: Any = None,
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
        cls,
        backbone: nn.Module | Callable[..., Any],
        spec: Specification,
        certificate: Certificate,
        *,
        embedding: int | None = None,
    ) -> Self:
        """Return a network with an already certified head, of rules or a learned box."""
        network = cls.__new__(cls)
        nn.Module.__init__(network)
        network._set_up(backbone, spec, embedding)
        network.head = CertifiedHead(certificate)
        return network

    def _set_up(self, backbone: nn.Module | Callable[..., Any], spec: Specification, embedding: int | None) -> None:
        self.spec, own = spec, as_module(backbone)
        self.backbone = own if embedding is None else Answers(own, embedding, DataScale.of_rules(spec))
        self.is_fresh = embedding is not None  # units may still come from data
        self._quick = Quick.of(self.backbone)

    def _certified(self, targets: npt.NDArray[np.float64] | None) -> Certificate:
        default = scale = None
        if targets is not None and self.spec.output_kind == "numbers":
            default, scale = np.median(targets, axis=0), targets.std(axis=0)
        return certify_head(self.spec, default=default, scale=scale, files={"rules": self.spec.to_yaml().encode()})

    @property
    def certificate_(self) -> Certificate:
        """The proof, valid for any answers of the backbone."""
        return self.head.certificate

    @property
    def counts(self) -> dict[str, int]:
        """How many answers were served, moved and replaced so far."""
        return self.head.counts

    def set_units(self, features: Any, targets: Any = None) -> None:
        """Take units from data, before training: tables, arrays or tensors of features (..., d) and targets (..., m).

        Raises:
            DataError: If the columns do not match the rules.
            TypeError: If the head is a learned box, whose units are those it was trained in.
        """
        if "head" in self._modules and not self.head.program.reads_answers:
            raise TypeError(
                "set_units: expected a head of rules. Got a learned box, which keeps the units of its data."
            )
        wanted = None if targets is None else encoded_targets(self.spec, targets)
        if isinstance(self.backbone, Answers):
            self.backbone.set_units(DataScale.of_data(self.spec, encoded_features(self.spec, features), wanted))
        self.head, self.is_fresh = CertifiedHead(self._certified(wanted)), False

    # --- answers

    def forward(
        self, features: Tensor, *inputs: Any, mask: Tensor | None = None, fill: float = math.nan, **named: Any
    ) -> Tensor:
        """Return answers in the shape of the backbone's: (..., m), or (...) for one output.

        Args:
            features: What the rules read: (..., d), or (B, d) for answers (B, T, m).
            inputs: Arguments of the backbone, instead of the features.
            mask: True where an answer is wanted, (...) as the answers. Other positions are padding: rules do not apply
                there, and nothing is counted.
            fill: The value at padding; it is not an answer.
            named: Further arguments of the backbone, by name. Pass ones called `mask` or `fill` by position.

        Raises:
            TypeError: If features are not a tensor of real numbers, or the backbone takes other arguments.
            ValueError: If shapes do not fit the rules.
            DataError: If features are integers that float64 cannot hold.
        """
        self._require_features(features)
        numbers = plain_numbers(features)
        if self.is_fresh and self.training:
            self._look(numbers, mask)
        parts: dict[str, Any] = self._modules  # attribute access is slow
        answers = None if inputs or named else quickly(self._quick, parts["backbone"], numbers)
        if answers is None:
            features = features.clone()  # rules apply to what was passed, but a module may write to it
            answers = self._called(numbers, inputs, named)
        answers, flat = self._columns(features, answers)
        features = features if features.ndim == answers.ndim else spread(features, answers)
        if mask is not None:
            require_mask(mask, tuple(answers.shape[:-1]))
        head: CertifiedHead = parts["head"]
        # Embeddings are no answers. A module may compute gradients itself.
        is_plain = self.training and head.program.reads_answers
        if is_plain and answers.requires_grad and torch.is_grad_enabled():
            head.served.require_shapes(features, answers)
            served = answers if mask is None else left_out(answers, mask, fill)
        elif mask is None:
            # Skip global module hooks: nothing may change the output of a head.
            served = head.forward(features, answers)
        else:
            head.served.require_shapes(features, answers)
            served = at_positions(head.forward, features, answers, mask, fill)
        return served[..., 0] if flat else served

    def _require_features(self, features: object) -> None:
        columns = self.spec.columns
        if not isinstance(features, Tensor):
            raise TypeError(
                f"Expected features as a tensor (..., {len(columns)}). Got {kind_of(features)}. Pass tables and arrays "
                "to network.predict."
            )
        if features.is_nested:
            raise TypeError(f"Expected features as a tensor (..., {len(columns)}). Got {kind_of(features)}.")
        if features.ndim < 1 or features.shape[-1] != len(columns):
            raise ValueError(
                f"Expected features of shape (..., {len(columns)}), the columns {', '.join(columns)}, as the first "
                f"argument. Got {tuple(features.shape)}. Pass further inputs of the backbone after them: "
                "network(features, *inputs)."
            )

    def _look(self, features: Tensor, mask: Tensor | None) -> None:
        """Take the units of the inputs from the first batch; the units of the outputs still come from the rules."""
        if torch.compiler.is_compiling() or features.is_meta or not isinstance(self.backbone, Answers):
            return
        self.is_fresh = False
        known = features.detach()
        if isinstance(mask, Tensor) and mask.dtype is torch.bool and mask.shape == features.shape[:-1]:
            known = known[mask]  # without padding
        rows = known.reshape(-1, features.shape[-1])
        if len(rows) >= _FEW_ROWS:
            self.backbone.set_units(DataScale.of_data(self.spec, rows.cpu().double().numpy(), None))

    def answers(self, features: Tensor, *inputs: Any) -> tuple[Tensor, bool]:
        """Return the backbone's answers (..., m), and whether it left out the last dimension."""
        answers = None if inputs else quickly(self._quick, self.backbone, features)
        return self._columns(features, self._called(features, inputs, {}) if answers is None else answers)

    def _columns(self, features: Tensor, answers: Any) -> tuple[Tensor, bool]:
        """Return answers with a column for each output, and whether the backbone left out the last dimension."""
        targets = self.spec.targets
        if not isinstance(answers, Tensor) or not answers.is_floating_point() or answers.is_nested:
            is_plain = isinstance(answers, Tensor) and not answers.is_nested
            got = answers.dtype if is_plain else kind_of(answers)
            raise ValueError(
                f"Expected the module to return a tensor of floats, a column each for {', '.join(targets)}. Got {got}. "
                "Wrap the module so that it does."
            )
        flat = len(targets) == 1 and answers.ndim == features.ndim - 1
        return (answers[..., None] if flat else answers), flat

    def _called(self, features: Tensor, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call the backbone on its own inputs if there are any, else on the features."""
        inner, given = self.backbone, inputs
        if not inputs and not named:
            own = inner.backbone if isinstance(inner, Answers) else inner
            kind = next((p.dtype for p in own.parameters() if p.is_floating_point()), torch.float32)
            x = inner.standardize(features) if isinstance(inner, Answers) else features
            given = (x.to(kind),)
        try:
            return inner(*given, **named)
        except TypeError as error:
            raise _explained(inner, given, named, error) if inputs or named else error from None

    def reading_features(self) -> nn.Module:
        """Return the module that maps features to answers."""
        inner = self.backbone
        return nn.Sequential(inner.standardize, inner) if isinstance(inner, Answers) else inner

    def predict(
        self,
        X: Any,
        *inputs: Any,
        mask: Any = None,
        fill: float = math.nan,
        out_of_domain: str = "raise",
        bad_rows: str = "raise",
        **named: Any,
    ) -> npt.NDArray[np.float32]:
        """Return answers to a table or an array, in eval mode: (n,) for one output, else (n, m); or (...), (..., m).

        Args:
            X: A table with the inputs that the rules name, or an array of the encoded inputs (..., d).
            inputs: Further arguments of the backbone.
            mask: True where an answer is wanted, as in `forward`. Features elsewhere may be anything.
            fill: The value elsewhere.
            out_of_domain: "raise", or "clip" or "warn": rows outside the domain are answered, and the rules hold at the
                clamped input.
            bad_rows: "raise", or "set aside": unreadable rows get NaN, and a warning has the reasons. The other rows
                are unaffected. `without_bad_rows` returns the reasons.
            named: Further arguments of the backbone, by name.
        """
        if mask is not None:
            named = {**named, "mask": torch.as_tensor(mask), "fill": fill}
        return predicted(self, self.spec, X, inputs, out_of_domain, bad_rows, named)

    def without_bad_rows(self, X: Any) -> tuple[Any, SetAside]:
        """Return the readable rows of a table or an array (n, d), and what is wrong with the others."""
        return readable(self.spec, X)

    # --- files

    def head_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the head, named as in the model file."""
        return self.head.arrays()

    def certified(self, files: dict[str, bytes] | None = None) -> Certificate:
        """Return the certificate; if files are given, bound to them and to the backbone's weights."""
        if files is None:
            return self.certificate_
        own = {name: value for name, value in weights_of(self).items() if name.startswith(BACKBONE)}
        return rebind(self.certificate_, files, backbone=tensors_of(own))

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> Certificate:
        """Write a model folder: backbone, head, rules, certificate; `smle.load(folder, backbone=module)` reads it.

        An existing certified model is replaced only with `overwrite=True`.
        """
        return save_network(self, folder, overwrite=overwrite)

    def to_onnx(
        self,
        path: str | PathLike[str],
        *,
        example: Any = None,
        dynamic_shapes: Any = None,
        monitor: bool = True,
        stacked: bool = False,
    ) -> None:
        """Write network and head as one ONNX file, with `<path>.certificate.json` beside it.

        Args:
            path: The file to write.
            example: Arguments of the backbone for two rows or more, if it reads anything but the features: a tensor, a
                tuple of arguments, or a dict of arguments by name.
            dynamic_shapes: The free axes, {axis: name} for each argument in the form of `example`. By default all that
                the backbone does not fix; then rows are answered one by one, and a backbone that mixes them is refused.
            monitor: Add the outputs `in_domain`, `outside_input` and `active_rules`.
            stacked: Write all answers to one tensor `outputs` (rows, outputs), as the network does, instead of one
                tensor per name.

        Raises:
            ModelFormatError: If torch.onnx cannot export the backbone, or the export answers differently at other sizes
                than those of the example.
        """
        with evaluating(self):
            write_network(self, path, example=example, dynamic_shapes=dynamic_shapes, monitor=monitor, stacked=stacked)

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self.is_fresh = False
        super()._load_from_state_dict(*arguments, **options)

    def extra_repr(self) -> str:
        """Say what is proved, and count the answers so far."""
        seen = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{len(self.certificate_.proved)} statements proved; {seen}"


def _explained(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], error: TypeError) -> TypeError:
    """Return an error that names the arguments a backbone takes, if it was called with others."""
    own = module.backbone if isinstance(module, Answers) else module
    assert isinstance(own, nn.Module)
    signature = inspect.signature(own.forward)
    try:
        signature.bind(*given, **named)
    except TypeError:
        name = type(own).__name__ if type(own) is not Function else getattr(own.forward, "__name__", "the function")
        listed = [type(value).__name__ for value in given] + [f"{key}={type(v).__name__}" for key, v in named.items()]
        return TypeError(
            f"Expected the arguments of the backbone after the features: {name} takes {signature}. Got "
            f"{len(listed)}: network(features, {', '.join(listed)})."
        )
    return error
