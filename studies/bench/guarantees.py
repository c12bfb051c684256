"""Verification, projection, counterexamples: closed forms and LPs against the paper's MILP, QP, MIQP and PDCG."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import numpy.typing as npt

from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import run_pdcg
from smle.heads.box.algorithms.projection import nearest_safe_head
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.heads.box.proof.pairs import verify_exclusions
from smle.heads.box.proof.verify import judge_literals, verify
from smle.heads.box.proof.worst_case import WidenedBox
from smle.regions.cell_search import find_cells
from smle.regions.cells import Cells
from smle.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import Literals, Specification
from studies.bench.paper_steps import counterexamples, iterations
from studies.harness import Table, bench, interleaved
from tests.support.formulations import exclusion_counterexample_milp, linear_counterexample_milp


@bench("Guarantees: ours against the paper's programs", default_threads=True)
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Run all parts; `quick` uses small sizes and few rounds."""
    return (
        _checks(quick, passed), _exclusion_checks(quick), _projections(quick, passed), counterexamples(quick, passed),
        iterations(quick, passed),
    )  # fmt: skip


def _f32(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)


def problem(
    seed: int, *, d: int, n: int, m: int, clauses: int, affine: bool, room: float
) -> tuple[Specification, Cells, FrozenHeads]:
    """Return one rule with single-literal clauses over an oblique polytope, and a head; `room` scales the bounds."""
    rng = np.random.default_rng(seed)

    def drawn(names: list[str], size: int, factors: list[int], bound: float) -> str:
        terms = (f"({rng.choice(factors)}) * {v}" for v in rng.choice(names, size=min(len(names), size), replace=False))
        return f"{' + '.join(terms)} <= {bound:.9g}"

    inputs, outputs = [f"x{i}" for i in range(d)], [f"y{i}" for i in range(m)]
    rows = [drawn(inputs, 3, [-3, -2, -1, 1, 2, 3], rng.integers(4, 16) / 8) for _ in range(3)]
    asked = [drawn(outputs, 2, [-2, -1, 1, 2], room * (2 + rng.integers(0, 3))) for _ in range(clauses)]
    rule = " and ".join(rows), " and ".join(asked)
    spec = Specification.build(inputs=dict.fromkeys(inputs, (-1, 1)), outputs=outputs, rules={"rule": rule})
    head = Head(_f32(rng.normal(size=(m, n)) / np.sqrt(n)), _f32(rng.normal(size=m) * 0.1))
    return spec, find_cells(spec), FrozenHeads(_bounds(rng, d, n, affine=affine), (head, None))


def _bounds(rng: np.random.Generator, d: int, n: int, *, affine: bool) -> Bounds:
    lower = -rng.uniform(0, 1, size=n)
    width = rng.uniform(0.2, 1.5, size=n)
    if not affine:
        return Bounds(_f32(lower), _f32(lower + width))
    slope, opening = rng.normal(size=(n, d)) * 0.2, rng.normal(size=(n, d)) * 0.1
    upper = lower + width + np.abs(opening).sum(axis=1)
    return Bounds(_f32(lower), _f32(upper), _f32(slope), _f32(slope + opening))


def _checks(quick: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    wrong = 0
    for kind in ("constant", "affine"):
        widths = (16, 64) if quick else (16, 64, 256, 1024) if kind == "constant" else (16, 64, 256)
        ratios: dict[int, list[float]] = {n: [] for n in widths}
        pruned: list[float] = []
        for n in widths:
            for state in ("holds by far", "just holds", "does not hold"):
                spec, cells, over = problem(
                    n, d=8, n=n, m=4, clauses=4, affine=kind == "affine", room=_room(n, state == "holds by far")
                )
                if state == "just holds":
                    over = _projected(spec, cells, over)
                contenders, agree = _contenders(spec, cells, over)
                times = interleaved(contenders, rounds=3 if quick else 5, budget=5.0)
                ratios[n].append(times["as printed"].ratio)
                pruned.append(times["pruned"].ratio)
                milliseconds = [times[name].median * 1e3 for name in contenders]
                wrong += not agree
                rows.append((kind, n, state, *milliseconds, times["as printed"].ratio, times["pruned"].ratio, agree))
        at_least = 10 if kind == "affine" else 100
        middle = float(np.median([r for values in ratios.values() for r in values]))
        tighter = float(np.median(pruned))
        passed[
            f"{kind} bounds: at least {at_least}x faster per check than the paper's MILP "
            f"(median {middle:.0f}x; against the pruned MILP {tighter:.0f}x)"
        ] = middle >= at_least
    passed[f"ours and the MILP agree in all but {wrong} of {len(rows)} checks"] = not wrong
    return Table(
        "One check: 4 linear clauses over a polytope of 8 inputs",
        (
            "bounds", "embedding", "property", "ours (ms)", "bounds new, too (ms)", "paper's MILP (ms)",
            "pruned MILP (ms)", "paper's / ours", "pruned / ours", "same answer",
        ),
        tuple(rows),
        "Ours: closed form, and for affine bounds one LP in x per clause, with rounding margin and multipliers; what "
        "depends on rules and bounds alone is prepared once "
        "(the next column: bounds are new each time, too). The "
        "paper's MILP (equation polytopes_counter, one binary per unit) and the same without the binaries that bound "
        "tightening decides, both by HiGHS. Times include writing the problem down. 'Just holds' is the "
        "head after projection, the usual state in training, where the MILP has to search.",
    )  # fmt: skip


def _projected(spec: Specification, cells: Cells, over: FrozenHeads) -> FrozenHeads:
    head = over.heads[0]
    assert head is not None
    result = nearest_safe_head(head, HeadProblem.of(over, spec, cells, 0))
    return FrozenHeads(over.bounds, (result.head, None))


def _room(n: int, held: bool) -> float:
    # Outputs spread like sqrt(n) times the box; the two constants put the bounds beyond or inside the reach.
    return (6.0 if held else 0.2) * float(np.sqrt(n))


def _contenders(spec: Specification, cells: Cells, over: FrozenHeads) -> tuple[dict[str, Callable[[], object]], bool]:
    """Return what is timed, ours first, and whether verify and the MILP agree."""
    head = over.heads[0]
    assert head is not None
    domain = Domain.of(spec)
    region = Region.of(cells, spec, [0], domain=domain)
    clauses = list(spec.rules[0].requirement.clauses)
    literals = Literals.of_clauses(clauses, len(head.b), len(domain.low))
    envelope, support = WidenedBox.of(over.bounds, domain), RegionMaximum(region)
    prepared = [Literals.of_clauses(clause, len(head.b), len(domain.low)) for clause in clauses]

    def anew() -> object:
        return judge_literals(prepared, head, WidenedBox.of(over.bounds, domain), support)

    milp = partial(linear_counterexample_milp, literals, over.bounds, head, region, time_limit=60.0)
    agree = verify(over, spec, cells).hold == milp().none_exists
    contenders: dict[str, Callable[[], object]] = {
        "ours": partial(judge_literals, prepared, head, envelope, support),
        "anew": anew,
        "as printed": partial(milp, as_printed=True),
        "pruned": milp,
    }
    return contenders, agree


def _exclusion_checks(quick: bool) -> Table:
    rows: list[tuple[object, ...]] = []
    for labels, n in ((5, 16), (10, 64)) if quick else ((5, 16), (10, 64), (20, 64)):
        rng = np.random.default_rng(labels)
        pairs = np.stack(np.triu_indices(labels, 1), axis=1).astype(np.int32)
        domain = Domain(-np.ones(4), np.ones(4), np.ones(4))
        bounds = Bounds(_f32(np.zeros(n)), _f32(np.ones(n)))
        W = rng.normal(size=(labels, n)) / np.sqrt(n)
        for held, share in ((True, 1.02), (False, 0.5)):
            top = np.maximum(W, 0).sum(axis=1)
            head = Head(_f32(W), _f32(-share * top))

            envelope, whole = WidenedBox.of(bounds, domain), Region.whole(domain)
            contenders: dict[str, Callable[[], object]] = {
                "ours": partial(verify_exclusions, pairs, head, envelope, domain, best=True),
                "MILP": partial(exclusion_counterexample_milp, pairs, bounds, head, whole, time_limit=20.0),
            }
            times = interleaved(contenders, rounds=3, budget=20.0)
            milliseconds = [times[name].median * 1e3 for name in contenders]
            rows.append((labels, len(pairs), n, "hold" if held else "do not", *milliseconds, times["MILP"].ratio))
    return Table(
        "One check of exclusions: all pairs of labels, constant bounds",
        ("labels", "pairs", "embedding", "they", "ours (ms)", "paper's MILP (ms)", "MILP / ours"),
        tuple(rows),
        "Ours: the best weights of every pair. The MILP (equation mutex_counter) by HiGHS, stopped after 20 s.",
    )


def _projections(quick: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    ended = []
    for affine in (False, True):
        for n, clauses in ((16, 4), (64, 4)) if quick else ((16, 4), (64, 4), (64, 20), (256, 4)):
            room = _room(n, False)
            spec, cells, over = problem(1, d=8, n=n, m=4, clauses=clauses, affine=affine, room=room)
            head = over.heads[0]
            assert head is not None
            clock = [time.perf_counter()]
            exact = nearest_safe_head(head, HeadProblem.of(over, spec, cells, 0))
            clock.append(time.perf_counter())
            runs = []
            for anchored, n_xs in ((False, 1), (True, 100)):
                task = HeadProblem.of(over, spec, cells, 0)
                runs.append(run_pdcg(head, task, n_it=100, n_xs=n_xs, anchored=anchored))
                clock.append(time.perf_counter())
            ended.append(runs[0].succeeded)
            seconds = np.diff(clock)
            shortest = float(np.sqrt(2 * exact.value))
            row: list[object] = ["affine" if affine else "constant", n, clauses, seconds[0]]
            for run, spent in zip(runs, seconds[1:], strict=True):
                iterations = f"{run.iterations}" if run.succeeded else f"not after {run.iterations}"
                distance = float(np.linalg.norm(run.head.vector() - head.vector()))
                row += [spent / seconds[0], iterations, distance / shortest]
            rows.append(tuple(row))
    passed[f"PDCG with a memory of one counterexample converges in all {len(ended)} cases"] = all(ended)
    return Table(
        "Exact projection against a full PDCG run",
        (
            "bounds", "embedding", "clauses", "exact (s)",
            "PDCG time / exact", "PDCG iterations", "PDCG distance / exact",
            "anchored time / exact", "anchored iterations", "anchored distance / exact",
        ),
        tuple(rows),
        "One cell, 8 inputs, 4 outputs, linear rules, at most 100 iterations. PDCG goes on from head to head with a "
        "memory of one counterexample, as the paper's experiments did; 'anchored' projects the first head each time, "
        "with a memory of 100. Both with the fast search for counterexamples and the QP through its dual (the paper's "
        "own MILP and QP would take longer), and both must be right after rounding. Distances of runs that did not end "
        "are those of heads that still break a rule.",
    )  # fmt: skip
