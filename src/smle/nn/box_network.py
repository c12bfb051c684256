"""BoxNetwork, the paper's network: backbone -> clip to l(x) <= z <= u(x) -> one affine head per cell."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.guarantees import Cells, Domain, FrozenHeads, find_cells
from smle.nn.bounds import AffineBox, Box, FixedBox, attentive_clip
from smle.nn.bridge import centers_of, frozen, ungated
from smle.nn.clip import eager
from smle.nn.head import DeployedHead
from smle.nn.head_parameters import HeadParameters
from smle.nn.network_bounds import NetworkBox
from smle.nn.own_bounds import box_of
from smle.nn.precision import Float32Only
from smle.nn.units import DataScale
from smle.rules import Specification

if TYPE_CHECKING:
    from smle.certificates.document import Certificate

__all__ = ["BoxNetwork", "Rescale", "Rescaled", "moves_with_inputs", "require_specification", "require_width"]

Array = npt.NDArray[np.float64]


class Rescale(nn.Module):
    """(z - center) / half, per unit and trained: constant bounds, folded into the backbone as clip to [-1, 1]."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(units))
        self.shift = nn.Parameter(torch.zeros(units))

    def forward(self, z: Tensor) -> Tensor:
        """Return the rescaled embedding (batch, n)."""
        return torch.addcmul(self.shift, z, self.scale)


class Rescaled(nn.Module):
    """A backbone with trained constant bounds behind it."""

    def __init__(self, backbone: nn.Module, units: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.rescale = Rescale(units)

    def forward(self, *inputs: Any) -> Tensor:
        """Return the rescaled embedding (batch, n)."""
        z: Tensor = self.rescale(require_width(self.backbone(*inputs), len(self.rescale.scale)))
        return z


class BoxNetwork(Float32Only):
    """backbone -> clip to l(x) <= z <= u(x) -> one affine head per cell, as in the paper.

    * features (batch, d), in the order of `spec.columns`, feed gate and bounds; the backbone maps them (or the extra
      arguments of `forward`) to an embedding (batch, n); outputs (batch, m) are in the order of `spec.targets`.
    * Nothing holds the heads back by itself: an enforcement (`smle.training.PDCG`) keeps them near what is safe while
      they are trained, and makes them safe at the end. `smle.project` does so without training.
    * `eval()` freezes bounds and heads: what then runs is the deployed program, the one that `smle.certify` judges.
    * Heads that were projected or refitted are deployed as they are (`pin`) until training goes on.

    Args:
        backbone: Any module that returns `embedding` numbers per row.
        spec: The rules.
        embedding: Width n of the backbone's output.
        bounds: `constant` (trained), `fixed` (-1 and 1), `affine` (trained, functions of x) or `network` (trained, a
            small ReLU network of x). Or a module of your own: `Linear` and `ReLU` in turn, inputs (batch, d) -> lower
            and upper bounds (batch, 2 n); or any with `affine_bounds()`, lower and upper (n, 1 + d), offsets first.
        gate: A head per cell, chosen by membership of x. False: one head for all inputs, as in the paper.
        passthrough: Let the heads see x directly (V x). None: only if rules mention inputs in `then`.
        frame: Units of the raw parameters, from data; the user's units by default.
        prefer: Outputs per cell (cells, m) near which heads start, for example the mean targets there; NaN rows: none.
        cells: The cells, if already known.

    Raises:
        NotCertifiedError: If no affine answer is found for the rules of some cell.
    """

    def __init__(
        self,
        backbone: nn.Module,
        spec: Specification,
        *,
        embedding: int,
        bounds: str | nn.Module = "constant",
        gate: bool = True,
        passthrough: bool | None = None,
        frame: DataScale | None = None,
        prefer: Array | None = None,
        cells: Cells | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(bounds, nn.Module) and bounds not in ("constant", "fixed", "affine", "network"):
            raise ValueError(
                f"Expected bounds to be 'constant', 'fixed', 'affine', 'network' or a module. Got {bounds!r}."
            )
        require_specification(spec)
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
        self.training_clip: Callable[..., Tensor] = attentive_clip
        self.backbone = Rescaled(backbone, embedding) if bounds == "constant" else backbone
        self.box = self._make_box(bounds, embedding, frame)
        self.heads = HeadParameters(
            centers_of(spec, self.cells, prefer=prefer),
            frame,
            units=embedding,
            passthrough=passthrough,
            free=self.cells.free_cell,
        )
        self.deployed = DeployedHead(
            spec,
            self.cells,
            embedding=embedding,
            affine=self.box.is_affine,
            hidden=self.box.widths,
            passthrough=passthrough,
        )

    def _make_box(self, bounds: str | nn.Module, embedding: int, frame: DataScale) -> Box:
        if isinstance(bounds, nn.Module):
            return box_of(bounds, embedding, len(self.spec.columns))
        if bounds not in ("affine", "network"):
            return FixedBox(embedding)
        domain = Domain.of(self.spec)
        low, high = (torch.from_numpy((end - frame.x_shift) / frame.x_scale) for end in (domain.low, domain.high))
        return (NetworkBox if bounds == "network" else AffineBox)(embedding, low, high)

    def forward(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the outputs (batch, m) in the user's units."""
        features = self.deployed.read(features)
        z = self.embed(features, *backbone_inputs)
        if not self.training:
            outputs: Tensor = self.deployed(features, z)
            return outputs
        if self.pinned:  # training goes on
            self.pinned = False
        device = "cpu" if z.is_cpu else z.device.type
        if not torch.is_autocast_enabled(device):
            return self._train_outputs(features, z)
        with torch.autocast(device_type=device, enabled=False):
            return self._train_outputs(features, z)

    def _train_outputs(self, features: Tensor, z: Tensor) -> Tensor:
        if eager(z):
            self.deployed.require_shape(features, len(z))
        z = z if z.dtype is torch.float32 else z.to(torch.float32)
        envelope = self.box.envelope()
        known = self.heads.constants(torch.float32)

        def limits(x32: Tensor) -> tuple[Tensor, Tensor]:
            return self.box.limits(x32, envelope, standardize=(known["standard_offset"], known["standard"]))

        certified, free = self.heads(torch.float32)
        return self.deployed.outputs(
            features, z, limits=limits, heads=certified, free=free, clipped_by=self.training_clip
        )

    def embed(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the embedding (batch, n) before it is clipped."""
        if backbone_inputs:
            z = self.backbone(*backbone_inputs)
        else:
            z = self.backbone(features if features.dtype is torch.float32 else features.to(torch.float32))
        return require_width(z, self.embedding)

    def train(self, mode: bool = True) -> BoxNetwork:
        """Switch between training and the deployed program; leaving training freezes bounds and heads."""
        if self.training and not mode:
            self.freeze()
        if mode:
            self.pinned = False
        super().train(mode)
        return self

    @torch.no_grad()
    def freeze(self) -> None:
        """Compute bounds and heads in float64, round them to float32 and store them in the deployed program.

        Does nothing while heads are pinned.
        """
        if self.pinned:
            return
        self.deployed.store(*frozen(self.heads, self.box, fallback=not self.deployed.nan_safe_clip))

    @torch.no_grad()
    def pin(self, over: FrozenHeads, free: tuple[Tensor, Tensor] | None = None) -> None:
        """Deploy given heads exactly as they are, until training goes on; the bounds stay.

        The raw parameters follow, so that training would go on from these heads. The network is left in eval mode.
        `free` is the head of the free cell, weight (m, n) and bias (m,); None
        keeps it.
        """
        self.eval()
        self.deployed.store(over, free)
        self.load_heads(over)
        if free is not None:
            self.heads.assign_free(free[0].to(torch.float64), free[1].to(torch.float64))
        self.pinned = True

    @torch.no_grad()
    def load_heads(self, over: FrozenHeads) -> None:
        """Set the raw parameters to given heads."""
        heads = [head for head in over.heads if head is not None]
        if heads:
            V = None if heads[0].V is None else np.stack([head.V for head in heads if head.V is not None])
            self.heads.assign(np.stack([head.W for head in heads]), V, np.stack([head.b for head in heads]))

    def get_extra_state(self) -> Tensor:
        """Return whether heads are pinned, for `state_dict`."""
        return torch.tensor(self.pinned)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over whether heads are pinned."""
        self.pinned = bool(state)

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> Certificate:
        """Write a model folder: backbone, heads, rules, certificate; `smle.load(folder, backbone=module)` reads it.

        A certified model that is there is replaced with `overwrite=True`.

        Raises:
            NotCertifiedError: If there are no rules, or one cannot be proved.
        """
        from smle.corrected.network import save_network

        return save_network(self, folder, overwrite=overwrite)

    def frozen_heads(self) -> FrozenHeads:
        """Return what the deployed program can reach, as plain arrays."""
        if self.training:
            self.freeze()
        return self.deployed.frozen_heads()


def moves_with_inputs(spec: Specification) -> bool:
    """Return whether some rule mentions inputs in `then`, so that what it allows moves with x."""
    clauses = [clause for rule in spec.rules for clause in rule.requirement.clauses]
    return any(literal.inputs for clause in clauses for literal in clause.literals)


def require_specification(spec: object) -> None:
    """Raise TypeError unless rules are given as a Specification."""
    if not isinstance(spec, Specification):
        raise TypeError(
            f"Expected the rules as a Specification. Got {type(spec).__name__}. Read a file or a text with "
            "smle.Specification.from_yaml(...)."
        )


def require_width(z: object, units: int) -> Tensor:
    """Return an embedding if it has the shape (batch, units).

    Raises:
        ValueError: If it has not.
    """
    if isinstance(z, Tensor) and z.ndim == 2 and z.shape[1] == units:
        return z
    got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
    raise ValueError(f"Expected the backbone to return an embedding of shape (batch, {units}). Got {got}.")
