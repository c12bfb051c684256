"""BoxNetwork, the paper's network: backbone -> clip to l(x) <= z <= u(x) -> one affine head per cell."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load, save
from torch import Tensor, nn

from smle.errors import RuleError
from smle.heads.box.box_program import Box as BoxProgram
from smle.heads.box.network.bounds import AffineBox, BoxModule, FixedBox, NetworkBox
from smle.heads.box.network.deployed import centers_of, frozen, gate_of, ungated
from smle.heads.box.network.head_parameters import HeadParameters
from smle.heads.box.network.own_bounds import own_box
from smle.heads.box.network.torch_operations import TABLE, affine_at, clip
from smle.heads.box.proof.frozen_heads import FrozenHeads
from smle.networks.backbones import Quick, Rescaled, quickly, require_width
from smle.networks.features import is_large, plain_numbers, read_features, require_rules
from smle.networks.folders import save_network
from smle.networks.operator import is_differentiated, operator, serve
from smle.networks.precision import Float32Only, float32_by_default
from smle.networks.served_heads import ServedHead, box_digest
from smle.networks.units import DataScale
from smle.regions.cell_search import find_cells
from smle.regions.cells import Cells
from smle.regions.geometry import Domain
from smle.rules import Specification
from smle_check.program import Step, box, needed, prepared, run

if TYPE_CHECKING:
    from smle.certificates.document import Certificate

__all__ = ["BoxNetwork", "moves_with_inputs"]

Array = npt.NDArray[np.float64]


class BoxNetwork(Float32Only):
    """backbone -> clip to l(x) <= z <= u(x) -> one affine head per cell, as in the paper.

    * Features (batch, d), in the order of `spec.columns`, feed gate and bounds; the backbone maps them (or the extra
      arguments of `forward`) to an embedding (batch, n); outputs (batch, m) are in the order of `spec.targets`.
    * The network alone does not keep its heads safe: an enforcement (`smle.training.PDCG`) keeps them near safe ones in
      training and makes them safe at the end. `smle.project` does so without training.
    * `eval()` freezes bounds and heads. What then runs is the deployed program, which `smle.certify` judges. It runs in
      NumPy, in float32, whatever precision torch is set to, with the gradients of training.
    * Projected or refitted heads are deployed unchanged (`pin`) until training continues.

    Args:
        backbone: Any module that returns `embedding` numbers per row.
        spec: The rules.
        embedding: Width n of the backbone's output.
        bounds: `constant` (trained), `fixed` (-1 and 1), `affine` (trained, functions of x) or `network` (trained, a
            small ReLU network of x). Or your own modules: a tuple of two, for lower and upper bounds, each of `Linear`
            and `ReLU` layers in turn, (batch, d) -> (batch, n); one such module for both, with outputs (batch, 2 n),
            lower bounds first; or any module whose method `affine_bounds()` returns lower and upper bounds (n, 1 + d),
            offsets first.
        gate: Use one head per cell, chosen by membership of x. False: one head for all inputs, as in the paper.
        passthrough: Let the heads see x directly (V x). None: only if rules mention inputs in `then`.
        frame: Units of the raw parameters, from data; by default the user's units.
        prefer: Outputs per cell (cells, m) near which heads start, such as the mean targets there; NaN rows are
            ignored.
        cells: The cells, if already known.

    Raises:
        RuleError: If there are no rules, or they ask for steps or equalities.
        NotCertifiedError: If no affine answer is found for the rules of some cell.
    """

    _head: ServedHead

    @float32_by_default()
    def __init__(
        self,
        backbone: nn.Module,
        spec: Specification,
        *,
        embedding: int,
        bounds: str | nn.Module | tuple[nn.Module, nn.Module] = "constant",
        gate: bool = True,
        passthrough: bool | None = None,
        frame: DataScale | None = None,
        prefer: Array | None = None,
        cells: Cells | None = None,
    ) -> None:
        super().__init__()
        own = isinstance(bounds, nn.Module | tuple | list)
        if not own and bounds not in ("constant", "fixed", "affine", "network"):
            raise ValueError(
                f"Expected bounds to be 'constant', 'fixed', 'affine', 'network' or a module. Got {bounds!r}."
            )
        require_rules(spec)
        if spec.grid is not None:
            raise RuleError(
                "A learned box serves neither whole numbers of steps nor equalities. Use SafeNetwork, SafeRegressor "
                "or smle.correct, whose head is read off the rules."
            )
        if embedding < 1:
            raise ValueError(f"Expected an embedding of at least one unit. Got {embedding}.")
        found = find_cells(spec) if cells is None else cells
        self.spec = spec
        self.cells = found if gate else ungated(found)
        if not gate and prefer is not None:
            prefer = prefer[:1]
        frame = DataScale.identity(len(spec.columns), len(spec.targets)) if frame is None else frame
        if passthrough is None:
            passthrough = moves_with_inputs(spec)
        self.embedding = embedding
        self.pinned = False
        self.training_clip: Callable[..., Tensor] = clip
        self.backbone = Rescaled(backbone, embedding) if bounds == "constant" else backbone
        self._quick = Quick.of(self.backbone)
        self.box = self._make_box(bounds, embedding, frame)
        self.heads = HeadParameters(
            centers_of(spec, self.cells, prefer=prefer),
            frame,
            units=embedding,
            passthrough=passthrough,
            free=self.cells.free_cell,
        )
        self._is_large, self._columns = is_large(spec), len(spec.columns)
        self._gate, self._of_rules = gate_of(spec, self.cells)
        self.freeze()
        self._prepare()

    def _make_box(
        self, bounds: str | nn.Module | tuple[nn.Module, nn.Module], embedding: int, frame: DataScale
    ) -> BoxModule:
        if bounds in ("constant", "fixed"):
            return FixedBox(embedding)
        domain = Domain.of(self.spec)
        low, high = (torch.from_numpy((end - frame.x_shift) / frame.x_scale) for end in (domain.low, domain.high))
        if not isinstance(bounds, str):
            return own_box(bounds, embedding, low, high)
        return (NetworkBox if bounds == "network" else AffineBox)(embedding, low, high)

    def _prepare(self) -> None:
        """Precompute, for float32 and float64 features, the operations in front of the bounds."""
        place = self.heads.raw_weight.device
        tensors = {name: torch.from_numpy(value).to(place) for name, value in self._of_rules.items()}
        program = self._head.program
        assert isinstance(program, BoxProgram)
        ops = needed(program.ops, ("x32", "cell"))
        self._front: dict[torch.dtype, list[Step]] = {
            dtype: prepared(ops, tensors, TABLE, str(dtype).removeprefix("torch."))
            for dtype in (torch.float32, torch.float64)
        }
        self.heads.constants(torch.float32)  # cached now, so that none is created inside a transform

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BoxNetwork:
        super()._apply(fn, recurse)
        self._prepare()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out compiled programs; a copy compiles its own."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_head", "_front")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._deploy(self._over)
        self._prepare()

    # --- answers

    def forward(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the outputs (batch, m) in the user's units.

        Raises:
            ValueError: If shapes do not fit the rules.
            TypeError, DataError: If features are not real numbers, or are integers that floats cannot hold.
        """
        if self.training:
            features = read_features(features, is_large=self._is_large)
        numbers = plain_numbers(features)
        z = None if backbone_inputs else self._quickly(numbers)
        if z is None:
            features = features.clone()  # rules apply to what was passed, but a backbone may write to it
            z = self._called(numbers, backbone_inputs)
        z = require_width(z, self.embedding)
        if features.shape != (z.shape[0], self._columns):
            raise ValueError(
                f"Expected features of shape {(len(z), self._columns)}: one row per embedding, one column per input of "
                f"the rules. Got {tuple(features.shape)}."
            )
        if not self.training:
            return self._serve(features, z)
        if self.pinned:  # training continues
            self.pinned = False
        return self._trained(features, z)

    def _trained(self, features: Tensor, z: Tensor) -> Tensor:
        device = "cpu" if z.is_cpu else z.device.type
        if not z.is_meta and torch.is_autocast_enabled(device):
            with torch.autocast(device_type=device, enabled=False):
                return self._trained(features, z)
        z = z if z.dtype is torch.float32 else z.to(torch.float32)
        seen = {"features": features}
        steps = self._front[features.dtype]
        if steps:
            run(steps, seen)
        x32 = seen.get("x32")
        known = self.heads.constants(torch.float32)
        lower, upper = self.box.limits(
            features if x32 is None else x32,
            self.box.envelope(),
            standardize=(known["standard_offset"], known["standard"]),
        )
        return affine_at(seen.get("cell"), self.training_clip(z, lower, upper), x32, z, *self.heads(torch.float32))

    def _serve(self, features: Tensor, z: Tensor) -> Tensor:
        """Return what is deployed, with the gradients of training if requested."""
        # A compiled program follows the network through training; an exported one keeps the heads of that moment.
        is_compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        key = self._head.live if is_compiled else self._head.key
        embedding = z if z.dtype is torch.float32 else z.to(torch.float32)
        if not (is_differentiated(z) or is_differentiated(features)):
            served: Tensor = operator(features, embedding, None, key)
        else:
            served = serve(features.detach(), embedding.detach(), self._trained(plain_numbers(features), z), key)
        return served

    def embed(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the embedding (batch, n) before it is clipped."""
        z = None if backbone_inputs else self._quickly(features)
        return require_width(self._called(features, backbone_inputs) if z is None else z, self.embedding)

    def _quickly(self, features: Tensor) -> Any:
        """Run a sequence of plain layers without module calls; None if the backbone has to run."""
        x = features if features.dtype is torch.float32 else features.to(torch.float32)
        return quickly(self._quick, self._modules["backbone"], x)  # attribute access is slow

    def _called(self, features: Tensor, inputs: tuple[Any, ...]) -> Any:
        """Call the backbone on its own inputs if there are any, else on the features."""
        return self.backbone(*inputs) if inputs else self.backbone(features.to(torch.float32))

    def train(self, mode: bool = True) -> BoxNetwork:
        """Switch between training and the deployed program; leaving training freezes bounds and heads."""
        if self.training and not mode:
            self.freeze()
        if mode:
            self.pinned = False
        super().train(mode)
        return self

    # --- what is deployed

    def _deploy(self, over: FrozenHeads) -> None:
        self._over = over
        arrays = self._of_rules | over.stored()
        clip = "clamp" if "heads.fallback" in arrays else "where"
        program = BoxProgram(box(self._gate, clip, over.bounds.kind, arrays), arrays)
        digest = box_digest(program.ops, arrays)
        known: ServedHead | None = self.__dict__.get("_head")
        if known is not None:
            known.deploy(program, digest)
            return
        widths = self._columns, self.embedding, len(self.spec.targets)
        literals = [q for rule in self.spec.rules for c in rule.requirement.clauses for q in c.literals]
        conditions = [row for rule in self.spec.rules for region in rule.regions for row in region.rows]
        forms = [literal.inputs for literal in literals]
        forms += [row.coefficients for row in conditions if not row.is_comparison]
        read = {k for form in forms for k, _ in form}
        groups = [group for group in self.spec.one_hot if not read.isdisjoint(group)]
        network = ref(self)  # weak: the network owns the head
        self._head = ServedHead(
            program,
            digest,
            widths=widths,
            is_large=self._is_large,
            groups=groups,
            certified=lambda: own.certified() if (own := network()) is not None else None,
        )

    def freeze(self) -> None:
        """Compute bounds and heads in float64, round them to float32 and deploy them, unless heads are pinned."""
        if not self.pinned:
            self._deploy(frozen(self.heads, self.box))

    @torch.no_grad()
    def pin(self, over: FrozenHeads) -> None:
        """Deploy these bounds and heads exactly, until training continues; the free head stays if none is given.

        The raw parameters of heads are set to match, so that training would continue from these heads; the bounds keep
        theirs. The network is left in eval mode.
        """
        self.eval()
        if over.free is None:
            over = replace(over, free=self._over.free)
        elif over.free is not self._over.free:
            self.heads.assign_free(over.free.W, over.free.b)
        self.load_heads(over)
        self._deploy(over)
        self.pinned = True

    @torch.no_grad()
    def load_heads(self, over: FrozenHeads) -> None:
        """Set the raw parameters to given heads."""
        heads = [head for head in over.heads if head is not None]
        if heads:
            V = None if heads[0].V is None else np.stack([head.V for head in heads if head.V is not None])
            self.heads.assign(np.stack([head.W for head in heads]), V, np.stack([head.b for head in heads]))

    def frozen_heads(self) -> FrozenHeads:
        """Return the deployed bounds and heads as plain arrays."""
        if self.training:
            self.freeze()
        return self._over

    @property
    def deployed(self) -> BoxProgram:
        """The deployed program in NumPy: features (batch, d) and embeddings (batch, n) to outputs (batch, m)."""
        if self.training:
            self.freeze()
        program = self._head.program
        assert isinstance(program, BoxProgram)
        return program

    # --- state and files

    def get_extra_state(self) -> Tensor:
        """Return bytes for `state_dict`: a digest of domain and gate, and pinned heads."""
        heads = save(self._over.stored()) if self.pinned else b""
        return torch.frombuffer(bytearray(self._digest() + heads), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore pinned heads.

        Raises:
            RuntimeError: If the state belongs to other rules, whose heads are for other cells.
        """
        data, digest = state.cpu().numpy().tobytes(), self._digest()
        if data[: len(digest)] != digest:
            raise RuntimeError("This state belongs to a network with other rules.")
        heads = load(data[len(digest) :]) if len(data) > len(digest) else None
        self.pinned = heads is not None
        if heads is not None:
            self._deploy(FrozenHeads.of_stored(heads))

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Load a state and deploy it."""
        found = super().load_state_dict(*arguments, **options)
        self.freeze()
        self.heads.constants(torch.float32)
        return found

    def _digest(self) -> bytes:
        return hashlib.sha256(save(self._of_rules)).digest()

    def head_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the deployed head, named as in the model file."""
        return dict(self.deployed.tensors)

    def certified(self, files: dict[str, bytes] | None = None) -> Certificate | None:
        """Return a certificate for the network as it is now, or None if there are no rules."""
        from smle.heads.box.network.assurance import certify

        return certify(self, files=files) if self.spec.rules else None

    def reading_features(self) -> nn.Module:
        """Return the module that maps features to the embedding."""
        return self.backbone

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> Certificate:
        """Write a model folder: backbone, heads, rules, certificate; `smle.load(folder, backbone=module)` reads it.

        An existing certified model is replaced only with `overwrite=True`.

        Raises:
            NotCertifiedError: If there are no rules, or one cannot be proved.
        """
        return save_network(self, folder, overwrite=overwrite)


def moves_with_inputs(spec: Specification) -> bool:
    """Return whether some rule mentions inputs in `then`, so that what it allows depends on x."""
    clauses = [clause for rule in spec.rules for clause in rule.requirement.clauses]
    return any(literal.inputs for clause in clauses for literal in clause.literals)
