"""The paper's network: what the paper leaves open, bounds, clip in training, and what may stand for a projection.

`PaperChoices()` is the text. The published code, which made the paper's figures, differs in what the preset `published`
changes. docs/reproduction.md has the table: each choice in the text, in the published code and here by default, and its
effect.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from smle.heads.box.algorithms.counterexample import Counterexample
from smle.heads.box.algorithms.head_problem import RegionObligations
from smle.heads.box.algorithms.pdcg import strongest_counterexample
from smle.heads.box.network.bounds import BoxModule, BoxParameters
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.network.torch_operations import clip
from smle.heads.box.training.enforcement import PDCG, ProjectionReport
from smle.rules import Specification


@dataclass(frozen=True, kw_only=True)
class PaperChoices:
    """How the paper's networks are built, trained and scored, where that can be read in more than one way.

    * `gate`: False: one affine g for all x, equation smle. True: a projected head inside Q, a free one outside, which
      sees the embedding before the clip.
    * `linear_bounds`: two `free` layers, which may cross (the clip gives l then); or `ordered`: center and half-width.
    * `constant_bounds`: vectors that are `trained`, or `fixed` at -1 and 1.
    * `clip_gradient`: `plain`, that of max and min; `returning`: a unit beyond its bound still feels a gradient that
      would bring it back.
    * `first_phase`: what is trained before Algorithm 2: nothing (`none`), the network without projections (`plain`), or
      the same backbone and bounds under the property before (`handed on`; synthetic tasks only, in the order of
      `synthetic.trained_order`). Networks of `preprocess` hand their backbone on, too.
    * `keep`: the weights of the `last` epoch or of the `best` one.
    * `keep_memory`: the queue of counterexamples lasts over the steps.
    * `queue`: what enters it after a gradient step: `counterexamples`, or `all` points that searches end with. One that
      breaks nothing is any point of the box; here it is the lower corner. It makes no difference to a queue of one.
    * `anchored`: all projections of one run start from the head that the run was given.
    * `pairs`: the counterexample of the `best` pair of exclusive labels, or the one with the largest `sum` over pairs.
    * `tolerance` of exclusive labels. `scaled`: a projection keeps them from 0 by 1e-6 times M, the largest number that
      the head reaches; `threshold`: by 1e-5 times that, and they count as predicted from 1e-5 on; `flat`: by 1e-6. What
      is left between is for the exact projection at the end. Linear rules have 1e-6 under all of them.
    * `r2`: `pooled` over outputs, as the formula in the supplement has it, or `averaged`.
    * `lstm_layers`: how many layers of the recurrent backbone of the ablation are LSTMs.
    * `after_steps`: a `projection` after each gradient step (Algorithm 2); an `adversarial` step: the strength of the
      strongest counterexample goes down its gradient; or `attacks` on the network itself, through its backbone
      (`smle.training.Adversarial`).
    * `cost` of a projection: `squared`, or `absolute`, which is linear.

    The last two are the paper's own suggestions for cheaper training.
    """

    gate: Literal[False, True] = False
    linear_bounds: Literal["free", "ordered"] = "free"
    constant_bounds: Literal["trained", "fixed"] = "trained"
    clip_gradient: Literal["plain", "returning"] = "plain"
    first_phase: Literal["none", "plain", "handed on"] = "none"
    keep: Literal["last", "best"] = "last"
    keep_memory: Literal[False, True] = False
    anchored: Literal[False, True] = False
    queue: Literal["counterexamples", "all"] = "counterexamples"
    pairs: Literal["best", "sum"] = "best"
    tolerance: Literal["scaled", "threshold", "flat"] = "scaled"
    r2: Literal["pooled", "averaged"] = "pooled"
    lstm_layers: Literal[1, 2] = 1
    after_steps: Literal["projection", "adversarial", "attacks"] = "projection"
    cost: Literal["squared", "absolute"] = "squared"

    def __post_init__(self) -> None:
        for name, options in OPTIONS.items():
            if getattr(self, name) not in options:
                known = ", ".join(map(repr, options))
                raise ValueError(f"Expected {name} to be one of {known}. Got {getattr(self, name)!r}.")


OPTIONS: dict[str, tuple[object, ...]] = {name: get_args(kind) for name, kind in get_type_hints(PaperChoices).items()}
"""The values of every choice; the first is the text's."""


class FreeBox(BoxModule):
    """l and u as two layers of their own, trained, starting at -1 and 1 with slope zero; they may cross.

    Without `inputs` they are two vectors. Shapes: lower, upper (n, 1 + inputs).
    """

    def __init__(self, units: int, inputs: int = 0) -> None:
        super().__init__()
        start = torch.zeros(units, 1 + inputs)
        start[:, 0] = 1.0
        self.lower, self.upper = nn.Parameter(-start), nn.Parameter(start.clone())

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center and half-width, which is negative where the bounds cross."""
        lower, upper = self.lower.to(dtype), self.upper.to(dtype)
        return BoxParameters((lower + upper) / 2, (upper - lower) / 2)

    def limits(
        self, x32: Tensor, envelope: BoxParameters, *, standardize: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return l(x) and u(x)."""
        if not envelope.is_sloped:
            return self.lower[:, 0], self.upper[:, 0]
        return super().limits(x32, envelope, standardize=standardize)


class PaperNetwork(BoxNetwork):
    """A network of the paper with the bounds, the gate and the gradient of the clip that are chosen.

    Heads start as Keras draws them: Glorot uniform, biases zero.
    """

    def __init__(
        self, backbone: nn.Module, spec: Specification, *, embedding: int, linear: bool, choices: PaperChoices
    ) -> None:
        bounds = "affine" if linear else "fixed"
        super().__init__(backbone, spec, embedding=embedding, bounds=bounds, gate=choices.gate, passthrough=False)
        if choices.linear_bounds == "free" if linear else choices.constant_bounds == "trained":
            self.box = FreeBox(embedding, len(spec.columns) if linear else 0)
        self.training_clip = clip if choices.clip_gradient == "plain" else returning_clip
        with torch.no_grad():
            for weight in self.heads.raw_weight:
                nn.init.xavier_uniform_(weight)
            nn.init.zeros_(self.heads.raw_bias)


class AllPoints(PDCG):
    """PDCG whose queue takes a point after every step: where nothing is broken any point of the box, the lower corner.

    Points that break nothing push counterexamples out of the queue.
    """

    name = "all points"

    def after_step(self, network: BoxNetwork, step: int) -> None:
        """Run one iteration on every head, and remember a point of each that had no counterexample."""
        super().after_step(network, step)
        frozen = network.frozen_heads()
        for report in self.reports[-sum(head is not None for head in frozen.heads) :]:
            if report.succeeded:
                problem = self.problem(frozen, report.head)
                x = problem.domain.low
                self._memory(report.head).append(x, problem.envelope.corner(-np.ones(network.embedding), x), 0)


class Adversarial(PDCG):
    """Adversarial training in place of the projections within training; at the end PDCG projects as ever.

    After a gradient step the strength of the strongest counterexample takes a step of Adam down its own gradient, in
    the heads and in the bounds, which a projection does not move.
    """

    name = "adversarial"

    def __init__(self, *, rate: float = 1e-3, **options: Any) -> None:
        super().__init__(**options)
        self.rate = rate

    def start(self, network: BoxNetwork) -> None:
        """Forget what was learned before."""
        super().start(network)
        self._optimizer: torch.optim.Optimizer | None = None

    def after_step(self, network: BoxNetwork, step: int) -> None:
        """Weaken the strongest counterexample of every head."""
        if self._optimizer is None:
            trained = [*network.heads.parameters(), *network.box.parameters()]
            self._optimizer = torch.optim.Adam(trained, lr=self.rate, eps=1e-7)
        frozen = network.frozen_heads()
        for number, head in enumerate(frozen.heads):
            if head is None:
                continue
            started = time.perf_counter()
            problem = self.problem(frozen, number)
            search, part = strongest_counterexample(head, problem)
            if search.found is not None:
                self._optimizer.zero_grad(set_to_none=True)
                _strength(network, number, search.found, problem.parts[part]).backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
            strength = 0.0 if search.found is None else search.found.strength
            seconds = time.perf_counter() - started
            self.reports.append(ProjectionReport(step, number, search.none_exists, 0, strength, seconds))


def _strength(network: BoxNetwork, number: int, found: Counterexample, part: RegionObligations) -> Tensor:
    """Return the strength of a counterexample as a function of a head and of the bounds, between which z stays put."""
    x = torch.tensor(found.x, dtype=torch.float32)
    known, envelope = network.heads.constants(torch.float32), network.box.envelope()
    limits = network.box.limits(x[None], envelope, standardize=(known["standard_offset"], known["standard"]))
    lower, upper = (end.reshape(-1) for end in torch.broadcast_tensors(*limits))  # type: ignore[no-untyped-call]
    upper = torch.maximum(lower, upper)
    width = (upper - lower).detach()
    share = (torch.tensor(found.z, dtype=torch.float32) - lower.detach()) / torch.where(width == 0, 1.0, width)
    z = lower + share.clamp(0, 1) * (upper - lower)
    (weight, _, bias), _ = network.heads(torch.float32)
    y: Tensor = weight[number] @ z + bias[number]
    total: Tensor = y.new_zeros(())
    for literals in part.stated:
        constant = torch.tensor(literals.s @ found.x - literals.h, dtype=torch.float32)
        excess = torch.tensor(literals.g, dtype=torch.float32) @ y + constant
        total = total + torch.relu(excess.min())
    if len(part.exclusions) and len(found.violated) == 2:
        total = total + torch.relu(y[list(found.violated)].min() + 1e-3)
    return total


class _ReturningClip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        clipped = clip(z, lower, upper)
        ctx.save_for_backward(z - clipped)
        ctx.shapes = lower.shape, upper.shape
        return clipped

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        (beyond,) = ctx.saved_tensors  # negative below the box, positive above it
        lower, upper = ctx.shapes
        return (
            gradient.masked_fill(beyond * gradient < 0, 0.0),
            (gradient * (beyond < 0)).sum_to_size(lower) if ctx.needs_input_grad[1] else None,
            (gradient * (beyond > 0)).sum_to_size(upper) if ctx.needs_input_grad[2] else None,
        )


def returning_clip(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Clip z for training: a unit beyond a bound still feels a gradient that would bring it back.

    The true gradient is zero there, so that a unit which is clipped for all rows would never move again.
    """
    clipped: Tensor = _ReturningClip.apply(z, lower, upper)  # type: ignore[no-untyped-call]
    return clipped
