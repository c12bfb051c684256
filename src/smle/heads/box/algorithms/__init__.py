"""The paper's algorithms, without torch: find what breaks a head over its box, and the nearest head that is safe.

Safe centers (`center`), the strongest counterexample (`counterexample`), projection with delayed constraint generation
(`pdcg`, Algorithm 1), and, as robust convex programs (`head_problem`), exact projection (`projection`) and
the safe head that fits data best (`refitting`).
"""

from smle.heads.box.algorithms.counterexample import Counterexample, Search
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import Finder, Memory, Pdcg, Projector, run_pdcg, strongest_counterexample
from smle.heads.box.algorithms.refitting import refit

__all__ = [
    "Counterexample",
    "Finder",
    "HeadProblem",
    "Memory",
    "Pdcg",
    "Projector",
    "Search",
    "refit",
    "run_pdcg",
    "strongest_counterexample",
]
