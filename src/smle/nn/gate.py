"""InputClamp and gate of the deployed program: which cell an input lies in, decided as the certificate assumes.

The buffers of both are, name by name, tensors that docs/certificate-format.md prescribes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import ge, gt, mul
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from smle.certificates.gate import domain_arrays, gate_and_arrays
from smle.guarantees import Cells
from smle.nn.clip import clip
from smle.nn.precision import FixedFormats
from smle.rules import Specification

__all__ = ["Gate", "InputClamp", "RowHeads"]

_FEW_COLUMNS = 6  # that are compared one by one more quickly than gathered


class RowHeads(NamedTuple):
    """Which head serves each row: `inside_outside[0]` where `inside` (batch,), else `inside_outside[1]`."""

    inside: Tensor
    inside_outside: tuple[int, ...]


class _OfRules(FixedFormats):
    """A module whose stored constants follow from the rules: a state with other ones is refused when it is loaded."""

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        for name, own in self.state_dict().items():
            given = state_dict.get(prefix + name)
            if given is not None and not (given.dtype is own.dtype and torch.equal(given.to(own.device), own)):
                error_msgs.append(f"{prefix}{name} belongs to other rules than those of this network.")
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


class InputClamp(_OfRules):
    """Clamps inputs to the domain in their own float format, so that guard and bounds never see NaN."""

    lower_float32: Tensor
    upper_float32: Tensor
    lower_float64: Tensor
    upper_float64: Tensor

    def __init__(self, spec: Specification) -> None:
        super().__init__()
        for name, array in domain_arrays(spec).items():
            self.register_buffer(name.removeprefix("domain."), torch.from_numpy(array))

    def forward(self, x: Tensor) -> Tensor:
        """Return x clamped to the domain, same shape and type (batch, d)."""
        return self.clamp(x)

    def clamp(self, x: Tensor) -> Tensor:
        """Return x clamped to the domain, same shape and type (batch, d)."""
        ends = cast(dict[str, Tensor], self._buffers)
        if x.dtype is torch.float64:
            return clip(x, ends["lower_float64"], ends["upper_float64"])
        return clip(x, ends["lower_float32"], ends["upper_float32"])

    def ends(self, kind: str) -> tuple[list[float], list[float]]:
        """Return lower and upper ends for `float32` or `float64`, as numbers."""
        lower, upper = (cast(Tensor, self._buffers[f"{end}_{kind}"]).tolist() for end in ("lower", "upper"))
        return lower, upper

    def contains(self, x: Tensor) -> Tensor:
        """Return which rows lie in the domain: (batch,) bool. NaN does not."""
        double = x.dtype == torch.float64
        lower = self.lower_float64 if double else self.lower_float32
        upper = self.upper_float64 if double else self.upper_float32
        return ((x >= lower) & (x <= upper)).all(dim=1)


class _Numbers(NamedTuple):
    """The constants of domain and gate as Python numbers, for a single row. Sets of regions are bits of an integer.

    * `active`: the regions that some input of the domain may lie in.
    * `comparisons`: (column, compare, outcome where the row fails, number, regions that stay then), those that inputs
      of the domain decide: an input beyond the domain compares like its clamped value, and NaN like the lower end,
      which takes its place: `compare` is false for both.
    """

    lower: list[float]
    upper: list[float]
    active: int
    comparisons: list[tuple[int, Callable[[Any, Any], Any], bool, float, int]]
    oblique: list[tuple[list[float], float, int]]
    cells: dict[int, int]


def _bits(flags: Iterable[float]) -> int:
    return sum(1 << position for position, flag in enumerate(flags) if flag)


class Gate(_OfRules):
    """Finds the cell of each input. Each half-space is evaluated once; the bits pick one head.

    Comparisons with one input are exact in the input's own format; oblique rows are float64 sums with slack.
    """

    constants_float32: Tensor
    constants_float64: Tensor
    coefficients: Tensor
    thresholds: Tensor
    signatures: Tensor
    columns: Tensor
    negative: Tensor
    strict: Tensor
    comparison_regions: Tensor
    oblique_regions: Tensor
    targets: Tensor

    def __init__(self, spec: Specification, cells: Cells) -> None:
        super().__init__()
        self._numbers: dict[str, _Numbers] = {}
        self.rows, arrays = gate_and_arrays(spec, cells)
        for name, array in arrays.items():
            self.register_buffer(name.removeprefix("gate."), torch.from_numpy(array))
        bits = [[region in cell for region in cells.gated] for cell in cells]
        signatures = torch.tensor(bits, dtype=torch.uint8).reshape(len(cells), len(cells.gated))
        self.register_buffer("signatures", signatures)
        # What follows is derived from the rules and not stored.
        columns, negative, strict = zip(*self.rows.comparisons, strict=True) if self.rows.comparisons else ((), (), ())
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.long), persistent=False)
        self.register_buffer("negative", torch.tensor(negative, dtype=torch.bool), persistent=False)
        self.register_buffer("strict", torch.tensor(strict, dtype=torch.bool), persistent=False)
        self.has_strict = any(strict)
        first = len(columns)  # of the oblique rows
        for name, rows in (
            ("comparison_regions", range(first)),
            ("oblique_regions", range(first, first + self.rows.oblique)),
        ):
            member = [[float(row in own) for own in self.rows.members] for row in rows]
            matrix = torch.tensor(member, dtype=torch.float32).reshape(len(rows), len(cells.gated))
            self.register_buffer(name, matrix, persistent=False)
        self.register_buffer("targets", signatures.sum(dim=1).to(torch.float32), persistent=False)
        self.most_constrained = int(self.targets.argmax())
        # With one region the gate has two answers: the cell inside and the cell outside.
        places = {tuple(row): number for number, row in enumerate(bits)}
        self.inside_outside = tuple(places.get((bit,), self.most_constrained) for bit in (True, False))
        self.has_oblique = bool(self.rows.oblique)
        self.is_trivial = len(cells.gated) == 0
        self.is_single = len(cells.gated) == 1

    def active(self, x: Tensor, wide: Tensor | None = None) -> Tensor:
        """Return which gated regions are active: (batch, regions) bool. x is in the domain; wide: in float64."""
        outside = (~self._compared(x)).to(torch.float32) @ self.comparison_regions
        if self.has_oblique:
            outside = outside + self._above(x if wide is None else wide).to(torch.float32) @ self.oblique_regions
        return outside == 0

    def _compared(self, x: Tensor) -> Tensor:
        """Return which comparisons hold, (batch, comparisons), in the input's own format."""
        buffers = cast(dict[str, Tensor], self._buffers)
        chosen = x.index_select(1, buffers["columns"])
        # Turning the sign is exact; a product might flush subnormal numbers to zero.
        signed = torch.where(buffers["negative"], -chosen, chosen)
        constants = buffers["constants_float64" if x.dtype is torch.float64 else "constants_float32"]
        if not self.has_strict:
            return signed <= constants
        return torch.where(buffers["strict"], signed < constants, signed <= constants)

    def _above(self, x: Tensor) -> Tensor:
        """Return which oblique rows are exceeded, (batch, oblique), in float64."""
        return x.to(torch.float64) @ self.coefficients.T > self.thresholds

    def cell_of(self, x: Tensor, domain: InputClamp) -> int:
        """Return the cell of a single input (1, d), by comparing numbers instead of tensors.

        Comparisons give the same answer. Sums of oblique rows may differ in the last bits, for which their thresholds
        have slack.
        """
        kind = "float64" if x.dtype is torch.float64 else "float32"
        numbers = self._numbers.get(kind) or self._read(kind, domain)
        values: list[float] = x.tolist()[0]
        active = numbers.active
        for column, compare, fails, number, left in numbers.comparisons:
            if compare(values[column], number) is fails:
                active &= left
        if numbers.oblique:
            values = [
                low if not value >= low else high if value > high else value
                for value, low, high in zip(values, numbers.lower, numbers.upper, strict=True)
            ]
        for coefficients, threshold, left in numbers.oblique:
            if sum(map(mul, values, coefficients)) > threshold:
                active &= left
        return numbers.cells.get(active, self.most_constrained)

    def _read(self, kind: str, domain: InputClamp) -> _Numbers:
        """Read the stored constants as numbers; they are kept until the state changes."""
        buffers = {name: cast(Tensor, value).tolist() for name, value in self._buffers.items()}
        everything = (1 << len(buffers["signatures"][0])) - 1

        def left(member: list[float]) -> int:
            """Return the regions that stay active where a row fails, as bits."""
            return everything & ~_bits(member)

        lower, upper = domain.ends(kind)
        active, comparisons = everything, []
        names = ("columns", "negative", "strict", f"constants_{kind}", "comparison_regions")
        for column, negative, strict, constant, member in zip(*(buffers[name] for name in names), strict=True):
            low, high = (-upper[column], -lower[column]) if negative else (lower[column], upper[column])
            beyond = ge if strict else gt
            if beyond(low, constant):
                active &= left(member)  # holds nowhere in the domain
            elif beyond(high, constant):
                number = -constant if negative else constant
                comparisons.append((column, ge if negative is not strict else gt, not negative, number, left(member)))
        self._numbers[kind] = _Numbers(
            lower,
            upper,
            active,
            comparisons,
            [
                (row, threshold, left(member))
                for row, threshold, member in zip(
                    buffers["coefficients"], buffers["thresholds"], buffers["oblique_regions"], strict=True
                )
            ],
            {_bits(signature): number for number, signature in enumerate(buffers["signatures"])},
        )
        return self._numbers[kind]

    def _apply(self, fn: Any, recurse: bool = True) -> Gate:
        self._numbers.clear()
        super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self._numbers.clear()
        super()._load_from_state_dict(*arguments, **options)

    def inside_at(self, features: Tensor, domain: InputClamp) -> Tensor | None:
        """Return what `inside` returns, from inputs that are not clamped yet; None: ask `inside`.

        A few columns are compared one by one.
        """
        if self.has_oblique or len(cast(Tensor, self._buffers["columns"])) > _FEW_COLUMNS:
            return None
        kind = "float64" if features.dtype is torch.float64 else "float32"
        numbers = self._numbers.get(kind) or self._read(kind, domain)
        if not numbers.active or not numbers.comparisons:
            return None
        holds: Tensor | None = None
        exceeds: Tensor | None = None
        for column, compare, fails, number, _ in numbers.comparisons:
            found = compare(features.select(1, column), number)
            if fails:
                exceeds = found if exceeds is None else exceeds.logical_or_(found)
            else:
                holds = found if holds is None else holds.logical_and_(found)
        if holds is None or exceeds is None:
            return cast(Tensor, exceeds).logical_not_() if holds is None else holds
        return holds > exceeds

    def inside(self, x: Tensor, wide: Tensor | None = None) -> Tensor:
        """Return whether the only region is active: (batch,) bool. x is clamped to the domain; wide: in float64."""
        if not self.has_oblique:
            return self._compared(x).all(dim=1)
        below = ~self._above(x if wide is None else wide).any(dim=1)
        return self._compared(x).all(dim=1) & below if len(self.columns) else below

    def forward(self, x: Tensor) -> Tensor:
        """Return the index of the cell of each input: (batch,). x is clamped to the domain."""
        if self.is_single:
            yes, no = self.inside_outside
            inside = self.inside(x)
            return torch.full_like(inside, no, dtype=torch.long).masked_fill(inside, yes)
        return self.cell(self.active(x))

    def cell(self, bits: Tensor) -> Tensor:
        """Return the index of the cell of some bits (batch, regions): (batch,)."""
        bits = bits.to(torch.float32)
        signatures = self.signatures.to(torch.float32)
        # 2 bits.s - |s| is |bits| exactly where s equals bits; all numbers are small integers, so exact.
        match = bits @ (2 * signatures).T - self.targets == bits.sum(dim=1, keepdim=True)
        found = match.to(torch.float32).argmax(dim=1)
        # The certificate proves that every signature has a head; should one not, the strictest serves.
        return torch.where(match.any(dim=1), found, self.most_constrained)
