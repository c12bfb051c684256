"""The paper: an embedding clipped to a box, and heads that obey the rules over all of it.

Safe centers (`center`), the strongest counterexample (`counterexample`), projection with delayed constraint generation
(`pdcg`, Algorithm 1), and, as robust convex programs (`robust`, `head_problem`), the exact projection (`projection`)
and the safe head that fits data best (`refitting`). Others use the names below and nothing from inside.
"""

from smle.guarantees.box.center import find_center
from smle.guarantees.box.counterexample import Counterexample, Search
from smle.guarantees.box.head_problem import HeadProblem
from smle.guarantees.box.pdcg import COSTS as PDCG_COSTS
from smle.guarantees.box.pdcg import Finder, Memory, Pdcg, Projector, run_pdcg, strongest_counterexample
from smle.guarantees.box.projection import nearest_safe_head, project
from smle.guarantees.box.refitting import LOSSES as REFIT_LOSSES
from smle.guarantees.box.refitting import Samples, mean_loss, refit
from smle.guarantees.box.robust import Layout, RobustRow, roomy_center

__all__ = [
    "PDCG_COSTS",
    "REFIT_LOSSES",
    "Counterexample",
    "Finder",
    "HeadProblem",
    "Layout",
    "Memory",
    "Pdcg",
    "Projector",
    "RobustRow",
    "Samples",
    "Search",
    "find_center",
    "mean_loss",
    "nearest_safe_head",
    "project",
    "refit",
    "roomy_center",
    "run_pdcg",
    "strongest_counterexample",
]
