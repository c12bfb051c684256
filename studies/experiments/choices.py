"""What the paper leaves open, or says otherwise than its published code does: one frozen value, two presets.

`PaperChoices()` is the text. The published code, which made the paper's figures, differs in what `published` changes.
docs/reproduction.md has the table: each choice in the text, in the published code and here by default, and its effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints


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
      `selection.trained_order`). Networks of `preprocess` hand their backbone on, too.
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


def choices_of(preset: str, benchmark: str) -> PaperChoices:
    """Return the choices of `paper` (the text) or `published` (its code) for a benchmark.

    Raises:
        ValueError: If the preset is another one.
    """
    if preset == "paper":
        return PaperChoices()
    if preset != "published":
        raise ValueError(f"Expected 'paper' or 'published'. Got {preset!r}.")
    return PaperChoices(
        gate=True, constant_bounds="fixed", first_phase="handed on" if benchmark == "synthetic" else "plain",
        keep_memory=True, queue="all", pairs="sum", tolerance="threshold", r2="averaged", lstm_layers=2,
    )  # fmt: skip
