"""Verification and projection: closed forms and LPs against the paper's MILP and PDCG, and cost against size."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy import sparse

import smle_check
from smle.certificates.document import tensors_of
from smle.guarantees.box.head_problem import HeadProblem
from smle.guarantees.box.pdcg import run_pdcg
from smle.guarantees.box.projection import nearest_safe_head
from smle.guarantees.box.robust import robust_rows
from smle.guarantees.proof.exclusions import verify_exclusions
from smle.guarantees.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.guarantees.proof.verify import judge_literals, verify
from smle.guarantees.proof.worst_case import WidenedBox
from smle.guarantees.regions.cells import Cells
from smle.guarantees.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import CNF, Clause, Literal, Literals, Number, NumericInput, Polytope, Row, Rule, Specification, linear
from smle.solvers import BACKENDS, QuadraticProgram, infeasibility, solve
from smle_check.heads import box
from smle_check.reading import values
from studies.bench.harness import BenchResult, Plot, Table, interleaved
from studies.formulations import exclusion_counterexample_milp, linear_counterexample_milp

__all__ = ["run"]


def run(quick: bool = False) -> BenchResult:
    """Run all parts; `quick` uses small sizes and few rounds."""
    passed: dict[str, bool] = {}
    checks, check_plot = _checks(quick, passed)
    sizes, size_plot = _sizes(quick)
    tables = (
        checks,
        _exclusion_checks(quick),
        _projections(quick, passed),
        _back_ends(quick),
        sizes,
        _many_rules(passed),
        *_many_exclusions(quick, passed),
    )
    return BenchResult(
        "guarantees",
        "Guarantees: verification and projection",
        tables,
        (check_plot, size_plot),
        passed=passed,
        quick=quick,
    )


def _f32(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)


def problem(
    seed: int, *, d: int, n: int, m: int, clauses: int, affine: bool, room: float
) -> tuple[Specification, Cells, FrozenHeads]:
    """Return one rule with single-literal clauses over an oblique polytope, and a head; `room` scales the bounds."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(3):
        columns = rng.choice(d, size=min(d, 3), replace=False)
        form = linear({int(i): Fraction(int(rng.choice([-3, -2, -1, 1, 2, 3]))) for i in columns})
        rows.append(Row(form, Fraction(int(rng.integers(4, 16)), 8)))
    polytope = Polytope(tuple(rows))
    head = Head(_f32(rng.normal(size=(m, n)) / np.sqrt(n)), _f32(rng.normal(size=m) * 0.1))
    literals = []
    for _ in range(clauses):
        picked = rng.choice(m, size=min(m, 2), replace=False)
        form = linear({int(i): Fraction(int(rng.choice([-2, -1, 1, 2]))) for i in picked})
        bound = Fraction(room).limit_denominator(100) * (2 + int(rng.integers(0, 3)))
        literals.append(Clause((Literal(form, (), bound),)))
    spec = Specification(
        tuple(NumericInput(f"x{i}", Fraction(-1), Fraction(1)) for i in range(d)),
        tuple(Number(f"y{i}") for i in range(m)),
        (Rule("rule", (polytope,), CNF(tuple(literals)), "...", "..."),),
    )
    cells = Cells(
        rows=polytope.rows,
        regions=(tuple(range(len(polytope.rows))),),
        rules=((0,),),
        gated=(0,),
        active=((0,), ()),
        conflicts=(),
        implications=(),
    )
    return spec, cells, FrozenHeads(_bounds(rng, d, n, affine=affine), (head, None))


def _bounds(rng: np.random.Generator, d: int, n: int, *, affine: bool) -> Bounds:
    lower = -rng.uniform(0, 1, size=n)
    width = rng.uniform(0.2, 1.5, size=n)
    if not affine:
        return Bounds(_f32(lower), _f32(lower + width))
    slope, opening = rng.normal(size=(n, d)) * 0.2, rng.normal(size=(n, d)) * 0.1
    upper = lower + width + np.abs(opening).sum(axis=1)
    return Bounds(_f32(lower), _f32(upper), _f32(slope), _f32(slope + opening))


def _checks(quick: bool, passed: dict[str, bool]) -> tuple[Table, Plot]:
    rows: list[tuple[object, ...]] = []
    series: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
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
                times = interleaved(contenders, rounds=3 if quick else 7, budget=15.0)
                ratios[n].append(times["as printed"].ratio)
                pruned.append(times["pruned"].ratio)
                milliseconds = [times[name].median * 1e3 for name in contenders]
                rows.append((kind, n, state, *milliseconds, times["as printed"].ratio, times["pruned"].ratio, agree))
        at_least = 10 if kind == "affine" else 100
        middle = float(np.median([r for values in ratios.values() for r in values]))
        tighter = float(np.median(pruned))
        passed[
            f"{kind} bounds: at least {at_least}x faster per check than the paper's MILP "
            f"(median {middle:.0f}x; against the pruned MILP {tighter:.0f}x)"
        ] = middle >= at_least
        series[f"{kind} bounds"] = (
            tuple(float(n) for n in widths),
            tuple(float(np.median(values)) for values in ratios.values()),
        )
    table = Table(
        "One check: 4 linear clauses over a polytope of 8 inputs",
        (
            "bounds",
            "embedding",
            "property",
            "ours (ms)",
            "bounds new, too (ms)",
            "paper's MILP (ms)",
            "pruned MILP (ms)",
            "paper's / ours",
            "pruned / ours",
            "same answer",
        ),
        tuple(rows),
        "Ours: closed form, and for affine bounds one LP in x per clause, with rounding margin and multipliers; what "
        "depends on rules and bounds alone is prepared once, as for a check after every gradient step of the head "
        "(the next column: bounds are new each time, too). The "
        "paper's MILP (equation polytopes_counter, one binary per unit) and the same without the binaries that bound "
        "tightening decides, both by HiGHS. Times include writing the problem down. 'Just holds' is the "
        "head after projection, the usual state in training, where the MILP has to search.",
    )
    return table, Plot("paper's MILP / ours, per check", "embedding size", "ratio", series)


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
            times = interleaved(
                {
                    "ours": partial(verify_exclusions, pairs, head, envelope, domain, best=True),
                    "MILP": partial(exclusion_counterexample_milp, pairs, bounds, head, whole, time_limit=20.0),
                },
                rounds=3,
                budget=20.0,
            )
            rows.append(
                (
                    labels,
                    len(pairs),
                    n,
                    "hold" if held else "do not",
                    times["ours"].median * 1e3,
                    times["MILP"].median * 1e3,
                    times["MILP"].ratio,
                )
            )
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


def _back_ends(quick: bool) -> Table:
    rows: list[tuple[object, ...]] = []
    for affine in (False, True):
        for n, clauses in ((64, 4),) if quick else ((64, 4), (64, 20), (256, 4)):
            room = _room(n, False)
            spec, cells, over = problem(1, d=8, n=n, m=4, clauses=clauses, affine=affine, room=room)
            head = over.heads[0]
            assert head is not None
            task = HeadProblem.of(over, spec, cells, 0)
            layout = task.layout(head)
            safe = robust_rows(task.rows(task.weights(head), head), task.envelope, layout)
            total = safe.A.shape[1]
            start = np.zeros(total)
            start[: layout.size] = head.vector()
            P = sparse.diags(np.arange(total) < layout.size, format="csr", dtype=float)
            program = QuadraticProgram(P, -start, safe.A, safe.row_lower, safe.row_upper, safe.lower, safe.upper)
            for backend in BACKENDS[QuadraticProgram]:
                before = time.perf_counter()
                found = solve(program, backend=backend, time_limit=20.0)
                seconds = time.perf_counter() - before
                gap = float("nan") if found.x is None else infeasibility(program, found.x)
                rows.append(
                    (
                        "affine" if affine else "constant",
                        n,
                        clauses,
                        f"{program.size[0]} x {program.size[1]}",
                        backend,
                        seconds,
                        found.status.name,
                        "-" if found.x is None else gap,
                    )
                )
    return Table(
        "QP back-ends on the projection's own problem",
        ("bounds", "embedding", "clauses", "rows x unknowns", "back-end", "seconds", "status", "largest violation"),
        tuple(rows),
        "All asked for 1e-9. PIQP is the default.",
    )


def _sizes(quick: bool) -> tuple[Table, Plot]:
    rows: list[tuple[object, ...]] = []
    widths = (64, 256, 1024) if quick else (64, 256, 1024, 4096)
    series: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for affine in (False, True):
        seconds = []
        for n in widths:
            spec, cells, over = problem(n, d=8, n=n, m=4, clauses=4, affine=affine, room=_room(n, True))
            timing = interleaved({"verify": partial(verify, over, spec, cells)}, rounds=5)
            seconds.append(timing["verify"].median)
            rows.append(("affine" if affine else "constant", n, timing["verify"].median * 1e3))
        series["affine" if affine else "constant"] = (tuple(map(float, widths)), tuple(seconds))
    table = Table(
        "Cost of verification against the embedding size (4 clauses, 8 inputs)",
        ("bounds", "embedding", "verify (ms)"),
        tuple(rows),
    )
    return table, Plot("verification", "embedding size", "seconds", series)


def _many_rules(passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    for affine in (False, True):
        spec, cells, over = hundred_rules(affine=affine)
        obligations = len(verify(over, spec, cells))
        timing = interleaved({"verify": partial(verify, over, spec, cells)}, rounds=5)["verify"]
        # The best of five: what else the machine does only ever adds.
        seconds = min(timing.seconds)
        kind = "affine" if affine else "constant"
        rows.append((kind, len(spec.rules), 256, obligations, seconds))
        passed[f"100 rules x 256 verified in under 1 s ({kind} bounds)"] = seconds < 1.0
    return Table(
        "Many rules: 100 rules over 100 oblique regions, one head, 8 inputs",
        ("bounds", "rules", "embedding", "obligations", "seconds (best of 5)"),
        tuple(rows),
    )


def hundred_rules(*, affine: bool) -> tuple[Specification, Cells, FrozenHeads]:
    """Return 100 rules, each over its own half-space, for one head that serves them all."""
    rng = np.random.default_rng(0)
    d, n, m = 8, 256, 4
    rules, rows = [], []
    for i in range(100):
        columns = rng.choice(d, size=3, replace=False)
        form = linear({int(c): Fraction(int(rng.choice([-3, -2, -1, 1, 2, 3]))) for c in columns})
        rows.append(Row(form, Fraction(i + 1, 64)))
        output = {int(rng.integers(m)): Fraction(int(rng.choice([-1, 1])))}
        clause = Clause((Literal(linear(output), (), Fraction(60)),))
        rules.append(Rule(f"rule {i}", (Polytope((rows[-1],)),), CNF((clause,)), "...", "..."))
    spec = Specification(
        tuple(NumericInput(f"x{i}", Fraction(-1), Fraction(1)) for i in range(d)),
        tuple(Number(f"y{i}") for i in range(m)),
        tuple(rules),
    )
    cells = Cells(tuple(rows), tuple((i,) for i in range(100)), tuple((i,) for i in range(100)), (), ((),), (), ())
    head = Head(_f32(rng.normal(size=(m, n)) / 16), _f32(rng.normal(size=m) * 0.1))
    return spec, cells, FrozenHeads(_bounds(rng, d, n, affine=affine), (head,))


def many_labels(quick: bool, *, room: tuple[float, float]) -> tuple[npt.NDArray[np.int32], Head, Bounds]:
    """Return pairs, a head and bounds at scale; `room` is the range of what a logit keeps of its reach below zero."""
    rng = np.random.default_rng(0)
    labels, n, count = (500, 64, 50_000) if quick else (2_000, 256, 1_000_000)
    pairs = np.stack(np.triu_indices(labels, 1), axis=1).astype(np.int32)
    pairs = pairs[np.sort(rng.choice(len(pairs), count, replace=False))]
    W = (rng.normal(size=(labels, n)) / np.sqrt(n)).astype(np.float32)
    reach = 0.5 * np.abs(W).sum(axis=1)
    head = Head(W, _f32(-W.sum(axis=1) / 2 - reach * rng.uniform(*room, size=labels)))
    return pairs, head, Bounds(_f32(np.zeros(n)), _f32(np.ones(n)))


def million_pairs(quick: bool) -> tuple[float, float, float, int]:
    """Verify exclusions at scale; return (seconds, peak memory in GB, share proved, pairs)."""
    pairs, head, bounds = many_labels(quick, room=(0.55, 0.95))
    domain = Domain(np.zeros(1), np.ones(1), np.ones(1))
    before = time.perf_counter()
    _, margins = verify_exclusions(pairs, head, WidenedBox.of(bounds, domain), domain)
    seconds = time.perf_counter() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return seconds, memory, float((margins > 0).mean()), len(pairs)


def million_checked(quick: bool) -> tuple[float, float]:
    """Check as many exclusions by the certificate's rules: CPU seconds to prepare the head, and for the pairs."""
    pairs, head, bounds = many_labels(quick, room=(0.95, 1.0))
    domain = Domain(np.zeros(1), np.ones(1), np.ones(1))
    weights, margins = verify_exclusions(pairs, head, WidenedBox.of(bounds, domain), domain)
    assert (margins > 0).all()
    block, names = pairs.astype("<u4").tobytes(), [f"label {i}" for i in range(len(head.b))]
    rule = {"name": "rule", "regions": [0], "clauses": [], "exclusions": {"offset": 0, "count": len(pairs)}}
    clock = [time.process_time()]
    spec = smle_check.Specification(
        {
            "inputs": [{"name": "x", "lower": "0", "upper": "1"}],
            "one_hot": [],
            "outputs": [{"name": name, "kind": "label"} for name in names],
            "rows": [],
            "regions": [[]],
            "rules": [rule],
        },
        block,
    )
    arrays = {"bounds.lower": bounds.lower, "bounds.upper": bounds.upper, "W": head.W.reshape(-1), "b": head.b}
    tensors = tensors_of(arrays)
    flat = [values(tensors, name, "F32", tensors[name].shape) for name in ("W", "b")]
    exact = box.Head(spec, box.Bounds(spec, tensors, "constant"), flat[0], [], flat[1])
    clock.append(time.process_time())
    stored = tuple(weights.astype(np.float64).reshape(-1).tolist())
    assert exact.exclusion_margin(spec.rules[0].exclusions, stored) > 0
    clock.append(time.process_time())
    prepared, checked = np.diff(clock).tolist()
    return prepared, checked


def _in_a_process(function: str, quick: bool) -> list[float]:
    # A process of its own, so that its peak memory is that of this function alone.
    program = f"import json; from studies.bench.guarantees import {function}; print(json.dumps({function}({quick})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    numbers: list[float] = json.loads(done.stdout)
    return numbers


def _many_exclusions(quick: bool, passed: dict[str, bool]) -> tuple[Table, Table]:
    seconds, memory, share, count = _in_a_process("million_pairs", quick)
    passed[f"{count:,} exclusions verified in under 60 s and 4 GB"] = seconds < 60 and memory < 4
    prepared, exact = _in_a_process("million_checked", quick)
    passed[f"{count:,} exclusions checked exactly, in pure Python, in under 5 minutes of CPU time"] = (
        prepared + exact < 300
    )
    labels, n = (500, 64) if quick else (2_000, 256)
    verified = Table(
        "Exclusions at scale, constant bounds",
        ("pairs", "labels", "embedding", "seconds", "peak memory of the process (GB)", "share proved"),
        ((count, labels, n, seconds, memory, share),),
        "Heads are drawn so that some pairs cannot be proved: they cost the most.",
    )
    checked = Table(
        "The same number of exclusions in a certificate",
        ("pairs", "reading the head (s)", "exact check (s)", "microseconds a pair"),
        ((count, prepared, exact, exact / count * 1e6),),
        "CPU seconds. All pairs hold. Exact: integers, standard library only.",
    )
    return verified, checked
