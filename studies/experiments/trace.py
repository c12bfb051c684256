"""One network of the paper, trained while its projections are watched: strengths, success and time, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smle.training.options import History
from studies.experiments import figures, methods
from studies.experiments.networks import train_safe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WINDOW = 50  # steps over which the success rate is averaged


def trace(job: methods.Job) -> History:
    """Train the paper's network of a job; `projections` of what is returned has every run of PDCG.

    Raises:
        ValueError: If the job's preset does not train the paper's network.
    """
    task = methods.load_task(job)
    settings = methods.settings_for(job, task)
    enforcement = settings.enforcement()
    targets = methods.enforced_targets(task) if settings.enforced else task.y
    return train_safe(task, settings, targets, enforcement, seed=methods.seed_of(job))[1]


def draw_projections(history: History, *, title: str) -> Figure:
    """Draw the strength of each counterexample, the share of runs without one, and the milliseconds of each run.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    runs = {name: np.asarray(values, dtype=float) for name, values in history.projections.items()}
    within = runs["step"] > 0
    step, strength = runs["step"][within], runs["strength"][within]
    figure = figures.blank(8.6, 6.4)
    top, middle, bottom = figure.subplots(3, sharex=True)
    found = strength > 0
    top.semilogy(step[found], strength[found], ".", markersize=2)
    top.set_ylabel("strength")
    top.set_title(f"{title}; at the end {runs['iterations'][~within].sum():.0f} projections")
    width = min(_WINDOW, len(step))
    if width:
        share = np.convolve(runs["succeeded"][within], np.ones(width) / width, mode="valid")
        middle.plot(step[width - 1 :], share)
    middle.set_ylim(-0.02, 1.02)
    middle.set_ylabel("no counterexample")
    bottom.plot(step, 1000 * runs["seconds"][within], ".", markersize=2)
    bottom.set_ylabel("ms")
    bottom.set_xlabel("gradient step")
    return figure
