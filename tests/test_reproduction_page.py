"""What docs/reproduction.md states is what the result files hold. A number that changes there changes here."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
PAGE = " ".join((DOCS / "reproduction.md").read_text(encoding="utf-8").split())
PROPERTIES = tuple(f"P{i}" for i in range(1, 7))
SMALL = tuple(f"n{n}-{kind}-P4" for n, kind in product((2, 4), ("easy", "medium", "hard")))


def rows(benchmark: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / f"{benchmark}.csv")


def scores(benchmark: str, preset: str, *, study: str = "main", method: str = "smle") -> pd.DataFrame:
    table = rows(benchmark)
    return table[(table.preset == preset) & (table.study == study) & (table.method == method)]


CHOICES = rows("paper_choices").set_index(["task", "variant"])


def choice(task: str, variant: str) -> str:
    return f"{CHOICES.score_averaged[task, variant]:.3f}"


def median(variant: str, tasks: tuple[str, ...] = SMALL) -> str:
    return f"{np.median([CHOICES.score_averaged[task, variant] for task in tasks]):.3f}"


def line(values: list[float] | pd.Series) -> str:
    return " | ".join(f"{value:.3f}" for value in values)


def seeds(preset: str, *, study: str = "main") -> int:
    """How many seeds of a synthetic study there are, each whole."""
    sizes = scores("synthetic", preset, study=study).groupby("seed").size()
    assert (sizes == 54).all(), f"{preset}, {study}: the page counts seeds of 54 tasks, the results have {dict(sizes)}"
    return len(sizes)


def of_seeds(preset: str) -> str:
    """How many seeds, and for every property the mean over them of the median over tasks."""
    medians = scores("synthetic", preset).groupby(["group", "seed"]).score.median()
    return f"{seeds(preset)} | {line([medians[name].mean() for name in PROPERTIES])}"


def comma(benchmark: str, preset: str, groups: tuple[str, ...]) -> str:
    table = scores(benchmark, preset)
    table = table[table.seed == 0]
    return ", ".join(f"{table.score[table.group.astype(str) == group].median():.3f}" for group in groups)


def converged(preset: str) -> str:
    table = scores("synthetic", preset)
    return f"{(table.pdcg_success.astype(str) == 'True').sum()} of {len(table)}"


def worst(preset: str) -> str:
    return f"{scores('synthetic', preset).pdcg_final_violation.max():.1g}"


def gain(study: str, than: str) -> str:
    """The mean gain of one study of the ablation over another, pair by pair, with its 95 % t-interval."""
    scored = [scores("synthetic", "published", study=name).set_index(["task", "seed"]).score for name in (study, than)]
    gains = (scored[0] - scored[1]).to_numpy()
    half = stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains))
    return f"{gains.mean():+.3f} ± {half:.3f}"


def cheap(task: str, variant: str) -> str:
    if (task, variant) not in CHOICES.index:
        return "no safe head"
    row = CHOICES.loc[(task, variant)]
    return row.stopped if isinstance(row.stopped, str) else f"{row.score_averaged:.3f}, {row.cpu_train:.0f} s"


def ablation(study: str) -> str:
    table = scores("synthetic", "published", study=study)
    means = [table.score[table.group == name].mean() for name in PROPERTIES]
    return line([*means, table.score.mean()])


def share(value: float) -> str:
    return f"{100 * value:.0f} %"


def stated() -> dict[str, str]:
    """Everything that the page says about result files, in its own words."""
    base = CHOICES.xs("base", level="variant")
    nine = base[base.index.str.contains("-P4")]
    handed = scores("synthetic", "published").set_index("task")
    gap = pd.read_csv(RESULTS / "best-gap.csv")
    behind = (gap.postprocess - gap.smle).groupby(gap.benchmark).max()
    return {
        "`paper`": f"| `paper`: the text, one g | {of_seeds('paper')} |",
        "`published`": f"| `published`: its code | {of_seeds('published')} |",
        "`best`": f"| `best`: our default | {of_seeds('best')} |",
        "convergence": (
            f"{converged('paper')} runs of `paper` and {converged('published')} of `published` converged by "
            f"themselves; the others left violations of at most {worst('paper')} and {worst('published')} to the exact "
            "projection"
        ),
        "ablation, bounds": f"linear bounds change the score by {gain('q3-linear', 'q3-constant')} (the paper",
        "ablation, size": f"a large network by {gain('q3-large', 'q3-linear')} (the paper",
        "crossing": (
            f"trained alone, {share(nine.crossed.max())} of test rows and units cross in {(nine.crossed > 0).sum()} of "
            f"{len(nine)} gated models, none in the others; with bounds that are handed on (`published`) some do in "
            f"{(handed.crossed > 0).sum()} of {len(handed)}, most in {handed.crossed.idxmax()}: "
            f"{share(handed.crossed.max())}"
        ),
        "nothing turned": f"where nothing turned gives a median of {median('base')}.",
        "gate": f"P4: median {median('base')} with the gate, {median('gate')} without. All of the text's choices: "
        f"{median('text')}, the same with a gate {median('text_gated')}",
        "linear bounds": f"P4: median {median('linear_bounds')}; n2-hard {choice('n2-hard-P4', 'base')} to "
        f"{choice('n2-hard-P4', 'linear_bounds')}, n2-medium {choice('n2-medium-P4', 'base')} to "
        f"{choice('n2-medium-P4', 'linear_bounds')}",
        "clip gradient": f"P4: median {median('clip_gradient')}; n2-hard {choice('n2-hard-P4', 'base')} to "
        f"{choice('n2-hard-P4', 'clip_gradient')}, n2-medium {choice('n2-medium-P4', 'base')} to "
        f"{choice('n2-medium-P4', 'clip_gradient')}",
        "first phase": f"a plain first phase against none: {median('base')} and {median('first_phase')};",
        "epoch kept": f"P4: median {median('base')} last, {median('keep')} best; n2-hard "
        f"{choice('n2-hard-P4', 'base')} to {choice('n2-hard-P4', 'keep')}",
        "text": f"P4 has a median of {median('text')} with all of the text's choices, and of {median('text_gated')}",
        "constant bounds": f"Monthly-M36044-0.90 {choice('Monthly-M36044-0.90', 'base')} fixed, "
        f"{choice('Monthly-M36044-0.90', 'constant_bounds')} trained; Daily-D4099-0.90 "
        f"{choice('Daily-D4099-0.90', 'base')} and {choice('Daily-D4099-0.90', 'constant_bounds')}.",
        "forecasting": f"`published` {comma('forecasting', 'published', ('1.0', '0.95', '0.9'))}, `paper` "
        f"{comma('forecasting', 'paper', ('1.0', '0.95', '0.9'))} (the paper",
        "forecasting, best": f"`best` {comma('forecasting', 'best', ('1.0', '0.95', '0.9'))}.",
        "classification": f"`published` {comma('classification', 'published', ('0.0', '0.3', '0.6'))}, `paper` "
        f"{comma('classification', 'paper', ('0.0', '0.3', '0.6'))} (the paper",
        "classification, best": f"`best` {comma('classification', 'best', ('0.0', '0.3', '0.6'))}.",
        "gap, synthetic": f"270 runs, our default is never more than {behind['synthetic']:.1e}".replace("e-0", "e-"),
        "gap, forecasting": f"375 runs, never more than {behind['forecasting']:.1e}".replace("e-0", "e-"),
        **{
            f"cheaper training, {task}": f"| {task} | "
            + " | ".join(cheap(task, variant) for variant in ("base", "default", "after_steps", "cost"))
            for task in dict.fromkeys(CHOICES.index.get_level_values("task"))
        },
        **{
            f"ablation, {study}": f"| {name} | {ablation(study)} |"
            for name, study in (
                ("constant, small", "q3-constant"),
                ("linear, small", "q3-linear"),
                ("linear, large", "q3-large"),
            )
        },
    }


@pytest.mark.parametrize(("what", "said"), stated().items(), ids=stated())
def test_the_page_says_what_was_measured(what: str, said: str) -> None:
    assert said in PAGE, f"docs/reproduction.md, {what}: the result files say: {said}"


SAME = {("forecasting", "published"): "base", ("synthetic", "paper"): "text"}
"""Networks that the bench of choices and a preset both train: the same settings, the same seed."""


@pytest.mark.parametrize(("benchmark", "preset"), SAME)
def test_choices_and_presets_were_measured_with_the_same_code(benchmark: str, preset: str) -> None:
    """A network that is in both files has one score. Where they differ, one is stale: run it again, or say so."""
    table = scores(benchmark, preset)
    of_preset = table[table.seed == 0].set_index("task").score_averaged
    of_choices = CHOICES.xs(SAME[benchmark, preset], level="variant").score_averaged
    both = of_preset.index.intersection(of_choices.index)
    assert len(both) >= 2
    assert np.allclose(of_preset[both], of_choices[both], rtol=0, atol=1e-3)


def test_best_gap_has_the_runs_that_the_page_counts() -> None:
    counts = pd.read_csv(RESULTS / "best-gap.csv").groupby("benchmark").size()
    assert counts.to_dict() == {"forecasting": 375, "synthetic": 270}


def test_the_authors_time_a_batch() -> None:
    """The paper's slow-down stands beside ours for a whole batch; single examples are our own measure."""
    for page in (RESULTS / f"{name}.md" for name in ("synthetic", "forecasting", "classification")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\| one example \| \w+, paper \|", text)
        assert "as in the paper, and the whole" not in text
    assert "The paper's time is that of one batch, divided by its rows" in PAGE
