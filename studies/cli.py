"""Command line of the studies: parse, call, print. Exit codes are those of `smle`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smle.cli.app import Json, common, out, print_json, reported

app = typer.Typer(
    name="python -m studies",
    help="Repeat the paper's experiments, measure, attack. Run this in a clone of the repository.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(common)


def main() -> None:
    """Entry point of `python -m studies`."""
    app()


Benchmark = Literal["synthetic", "forecasting", "classification", "all"]
Preset = Literal["paper", "published", "best", "all"]
Study = Literal["main", "ablation", "all"]
Backend = Literal["loky", "ray", "dask"]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes and few epochs, on generated data.")]
Jobs = Annotated[int, typer.Option(help="Jobs at a time, where there are many; -1: one per core.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds of the reproduction: 0, 1, ...")]
OneStudy = Annotated[Study, typer.Option(help="Of the reproduction. main: Q1 and Q2; ablation: Q3.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data; else SMLE_DATA, the cache, or a download.")]
Goal = Annotated[Path, typer.Option("--output", "-o", help="Folder for what is made; a run goes on where one stopped.")]


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="Which bench; none: list them.")] = None,
    quick: Quick = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for tables and numbers.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Jobs at a time, for benches of many jobs.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of single results; a run goes on where one stopped.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure ratios in one run, with versions and machine recorded.

    Example: python -m studies bench guarantees --quick -o results/
    """
    with reported(as_json):
        from studies.bench import available, run_bench

        if name is None:
            names = [*available()]
            print_json({"benches": names}) if as_json else print("\n".join(names))
            return
        _log_jobs()
        options = {key: value for key, value in (("jobs", jobs), ("folder", folder)) if value is not None}
        result = run_bench(name, quick=quick, output=output, **options)
        print(result.json() if as_json else result.markdown())


@app.command(name="all")
def everything(
    output: Goal,
    quick: Quick = False,
    only: Annotated[list[str] | None, typer.Option(help="A part to run; may be repeated. None: all.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="A part to leave out; may be repeated.")] = None,
    jobs: Jobs = 1,
    seeds: Seeds = 1,
    study: OneStudy = "main",
    before: Annotated[
        Path | None, typer.Option(help="Folder of earlier pages; changes.md says what differs from them.")
    ] = None,
) -> None:
    """Run every bench and the reproduction, and write all pages to one folder; finished parts are skipped.

    Example: python -m studies all -o results/ --skip platforms --before docs/results
    """
    resume = f"finished parts are in {output}; run the same command again to go on."
    with reported(interrupted=lambda: resume):
        from studies.changes import changes_of
        from studies.everything import run_everything

        _log_jobs()
        ended = run_everything(
            output, quick=quick, only=only or (), skip=skip or (), jobs=jobs, seeds=seeds, study=study
        )
        if before is not None:
            (output / "changes.md").write_text(changes_of(before, output), encoding="utf-8")
        if lost := [part.name for part in ended if part.outcome == "failed"]:
            out.print(f"failed: {', '.join(lost)}; see error.txt in {output}/parts", markup=False, soft_wrap=True)
            raise typer.Exit(1)


@app.command()
def fuzz(
    target: Annotated[str | None, typer.Argument(help="What to fuzz; none: list the targets.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 60.0,
    output: Goal = Path("fuzz"),
    guided: Annotated[
        bool | None, typer.Option("--guided/--plain", help="By coverage (atheris), or plain mutations.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 0,
) -> None:
    """Change valid files and see whether a parser or checker does something that is not documented.

    Example: python -m studies fuzz rules --seconds 60
    """
    with reported():
        from studies.fuzz.run import fuzz as run
        from studies.fuzz.targets import TARGETS

        if target is None:
            for known in TARGETS:
                print(known)
            return
        found = run(target, seconds=seconds, output=output / target, guided=guided, seed=seed)
        how = "guided by coverage" if found.guided else "plain mutations"
        out.print(f"{target}: {found.tried:,} inputs, {how}: {len(found.defects)} defects", markup=False)
        for place, reason in found.defects.items():
            out.print(f"{place}: {reason}", markup=False, soft_wrap=True)
        if found.defects:
            raise typer.Exit(1)


@app.command()
def verifier_export(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the ONNX and VNN-LIB files.")],
    plain: Annotated[bool, typer.Option("--plain", help="Properties in the simplest VNN-LIB.")] = False,
) -> None:
    """Write each cell of a certified model as a network of Gemm and Relu with its property, for outside verifiers.

    Example: python -m studies verifier-export model/ -o cells/
    """
    with reported():
        from smle.storage import read_record
        from studies.verifier_export import write_cells

        record = read_record(model)
        if record.certificate is not None:
            record.certificate.check()
        for place in write_cells(record, output, plain=plain):
            out.print(f"{place}, {place.with_suffix('.vnnlib').name}", markup=False, soft_wrap=True)


@app.command()
def reproduce(
    benchmark: Annotated[Benchmark, typer.Argument(help="Which benchmark of the paper.")],
    output: Goal,
    preset: Annotated[
        Preset, typer.Option(help="paper: as the text says; published: as its code does; best: our default; or all.")
    ],
    data_dir: DataDir = None,
    seeds: Seeds = 1,
    study: OneStudy = "main",
    jobs: Jobs = 1,
    backend: Annotated[Backend, typer.Option(help="Local processes, or a cluster.")] = "loky",
    address: Annotated[str | None, typer.Option(help="Address of a ray or dask cluster; else a local one.")] = None,
    quick: Quick = False,
    task: Annotated[str | None, typer.Option(help="One task by its name, as in n2-medium-P3.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed jobs again.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Run nothing, write the pages.")] = False,
    taken_from: Annotated[
        Path | None,
        typer.Option("--from", help="Folder with the CSV files of an earlier run; its jobs are taken over."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Repeat the paper's experiments; the same command again goes on where a run was stopped.

    Example: python -m studies reproduce synthetic --preset paper --task n2-medium-P3 -o reproduction/
    """
    resume = f"finished jobs are in {output}/jobs; run the same command again to go on."
    with reported(as_json, interrupted=lambda: resume):
        from studies.experiments.presets import BENCHMARKS, PRESETS
        from studies.experiments.reproduce import reproduce as run

        _log_jobs()
        run(
            BENCHMARKS if benchmark == "all" else (benchmark,),
            presets=PRESETS if preset == "all" else (preset,),
            output=output, data_dir=data_dir, task=task, seeds=seeds, study=study, jobs=jobs, backend=backend,
            address=address, quick=quick, retry_failed=retry_failed, report_only=report_only, taken_from=taken_from,
        )  # fmt: skip
        summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
        if as_json:
            print_json(summary)
            return
        for name, entry in summary.items():
            _show(name, entry, output)


@app.command()
def trace(
    benchmark: Annotated[Benchmark, typer.Argument(help="Which benchmark of the paper.")],
    task: Annotated[str, typer.Argument(help="One task by its name, as in n2-medium-P3.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture, .png or .svg.")],
    preset: Annotated[Preset, typer.Option(help="paper or published.")],
    data_dir: DataDir = None,
    quick: Quick = False,
) -> None:
    """Train one network of the paper and draw what its projections did, step by step.

    Example: python -m studies trace synthetic n2-medium-P3 --preset published -o trace.png
    """
    with reported():
        from studies.experiments.figures import draw_projections, picture
        from studies.experiments.methods import Job, load_task, seed_of, settings_for, train_papers

        place = None if data_dir is None else str(data_dir)
        job = Job(benchmark, task, preset, "main", 0, quick=quick, data_dir=place)
        data = load_task(job)
        _, history = train_papers(data, settings_for(job, data), seed_of(job))
        figure = draw_projections(history, title=f"{task}, preset {preset}")
        output.write_bytes(picture(figure, output.suffix.removeprefix(".")))
        out.print(
            f"{output}: {history.success_rate:.1%} of the runs found no counterexample", markup=False, soft_wrap=True
        )


def _log_jobs() -> None:
    """Log how far runs of many jobs are."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("studies.experiments").setLevel(logging.INFO)


def _show(name: str, entry: dict[str, Any], output: Path) -> None:
    """Print what is proved, the checks and where the page is; the page has the rest."""
    for preset, part in entry["presets"].items():
        if "models" in part:
            out.print(f"{name}, preset {preset}: certified: {part['certified']} of {part['models']} models")
        for check in part.get("checks", ()):
            met = "met" if check["met"] else "NOT MET"
            out.print(f"{met}: {check['statement']}: {check['found']}", markup=False, soft_wrap=True)
    for note in entry["notes"]:
        out.print(note, markup=False, soft_wrap=True)
    if entry["failed"]:
        out.print(f"failed jobs: {', '.join(entry['failed'])}", markup=False, soft_wrap=True)
    out.print(f"Page: {output}/{name}.md; rows: {output}/{name}.csv\n", soft_wrap=True)
