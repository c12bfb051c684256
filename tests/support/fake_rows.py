"""Rows as jobs would give them, drawn at random around the paper's numbers."""

from __future__ import annotations

import numpy as np

from studies.experiments.tables import SCORES

TASKS = {"synthetic": 9, "forecasting": 25, "classification": 5}


def fake_rows(benchmark, *, preset="best", seeds=1, study="main", standin=False):
    state = np.random.default_rng(0)
    rows = []
    for group, oracle in SCORES[benchmark]["oracle"].items():
        for seed in range(seeds):
            for task in range(TASKS[benchmark]):
                common = {"benchmark": benchmark, "task": f"t{task}-{group}", "group": group, "preset": preset}
                common |= {"study": study, "seed": seed, "standin": standin}
                top = float(state.uniform(oracle.q1 - 0.01, min(oracle.q3 + 0.01, 1.0)))
                rows.append(common | {"method": "oracle", "score": top, "violations": 0.0, "exact_violations": 0.0})
                loss = 0.25 if benchmark == "classification" else 0.01
                for method, seconds in (("preprocess", 1e-4), ("postprocess", 2e-3), ("smle", 1.2e-4)):
                    extra = {
                        "score": top - loss * float(state.uniform(0.8, 1.2)),
                        "violations": float(state.uniform(0, 0.3)) if method == "preprocess" else 0.0,
                        "exact_violations": float(state.uniform(0, 0.3)) if method == "preprocess" else 0.0,
                        "cpu_train": 3.0 * float(state.uniform(0.8, 1.2)),
                        "seconds_per_example": seconds * float(state.uniform(0.9, 1.1)),
                        "seconds_per_row_batch": seconds / 30 * float(state.uniform(0.9, 1.1)),
                    }
                    if benchmark == "synthetic":
                        extra |= {"score_interpolation": 0.9, "score_extrapolation": 0.5}
                    if method == "smle":
                        extra |= {"certified": True, "worst_margin": 1e-4, "seconds_certify": 0.2}
                        if preset == "paper":
                            extra |= {"pdcg_success": task != 0, "pdcg_iterations": 30 + task}
                            extra |= {"pdcg_counterexamples": 100, "pdcg_final_violation": 0.0}
                    rows.append(common | {"method": method} | extra)
    return rows
