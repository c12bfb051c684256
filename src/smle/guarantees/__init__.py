"""The mathematics, without torch: regions, proofs, the box of the paper, advice on rules.

Other rooms import these names from here, and nothing from the rooms inside.
"""

from smle.guarantees.advice.compare import compare
from smle.guarantees.advice.consistency import room_at
from smle.guarantees.advice.costs import RuleCost, score_text
from smle.guarantees.advice.diagnose import conflicts_explained, diagnose_arrays
from smle.guarantees.advice.diagnosis import Diagnosis, Finding
from smle.guarantees.advice.units import require_units
from smle.guarantees.advice.wording import point_text, quoted
from smle.guarantees.box import (
    PDCG_COSTS,
    REFIT_LOSSES,
    Counterexample,
    Finder,
    HeadProblem,
    Layout,
    Memory,
    Pdcg,
    Projector,
    RobustRow,
    Samples,
    Search,
    find_center,
    mean_loss,
    nearest_safe_head,
    project,
    refit,
    roomy_center,
    run_pdcg,
    strongest_counterexample,
)
from smle.guarantees.proof.exclusions import PairValues
from smle.guarantees.proof.frozen_heads import Bounds, FrozenHeads, Head, NetworkBounds
from smle.guarantees.proof.verdict import (
    Cut,
    ExclusionVerdicts,
    Holds,
    Leaf,
    NotProved,
    Obligation,
    UnitCut,
    Unknown,
    Verdict,
    Verdicts,
    Violated,
)
from smle.guarantees.proof.verify import verify
from smle.guarantees.proof.worst_case import HeadNumbers, WidenedBox
from smle.guarantees.regions.cells import Cells, binding_rules, regions_of
from smle.guarantees.regions.conflicts import COMPLEMENT
from smle.guarantees.regions.geometry import Domain, Region, RegionMaximum
from smle.guarantees.regions.guard import domain_box, guard_rows
from smle.guarantees.regions.search import find_cells
from smle.guarantees.regions.simplex import ExactInfeasible, ExactOptimal, maximize
from smle.nearest.literals import Node, branch_and_bound, choose_literals
from smle.nearest.oracle import common_units, nearest_outputs, to_scores
from smle.rules.membership import active, broken, clause_holds, meant

__all__ = [
    "COMPLEMENT",
    "PDCG_COSTS",
    "REFIT_LOSSES",
    "Bounds",
    "Cells",
    "Counterexample",
    "Cut",
    "Diagnosis",
    "Domain",
    "ExactInfeasible",
    "ExactOptimal",
    "ExclusionVerdicts",
    "Finder",
    "Finding",
    "FrozenHeads",
    "Head",
    "HeadNumbers",
    "HeadProblem",
    "Holds",
    "Layout",
    "Leaf",
    "Memory",
    "NetworkBounds",
    "Node",
    "NotProved",
    "Obligation",
    "PairValues",
    "Pdcg",
    "Projector",
    "Region",
    "RegionMaximum",
    "RobustRow",
    "RuleCost",
    "Samples",
    "Search",
    "UnitCut",
    "Unknown",
    "Verdict",
    "Verdicts",
    "Violated",
    "WidenedBox",
    "active",
    "binding_rules",
    "branch_and_bound",
    "broken",
    "choose_literals",
    "clause_holds",
    "common_units",
    "compare",
    "conflicts_explained",
    "diagnose_arrays",
    "domain_box",
    "find_cells",
    "find_center",
    "guard_rows",
    "maximize",
    "mean_loss",
    "meant",
    "nearest_outputs",
    "nearest_safe_head",
    "point_text",
    "project",
    "quoted",
    "refit",
    "regions_of",
    "require_units",
    "room_at",
    "roomy_center",
    "run_pdcg",
    "score_text",
    "strongest_counterexample",
    "to_scores",
    "verify",
]
