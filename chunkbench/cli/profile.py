"""`chunkbench profile`: shows what limits the speed of a case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkbench.cli.choosing import Changes, axes_of, choose_experiment
from chunkbench.cli.output import fail, format_option, new_run, show, status_line

if TYPE_CHECKING:
    from chunkbench.bench.experiment import Experiment
    from chunkbench.bench.experiment.point import Case
    from chunkbench.bench.runner.target import Target
    from chunkbench.bench.store.results import Result
    from chunkbench.workloads.serving.spec import ServingExperiment

PROFILES = Path("results/profiles")


@click.command(
    "profile",
    epilog="""\b
    Examples:
      chunkbench profile cpu-kernels chunk_attn --where n_p=4096 --where n_s=3072 --where dtype=bfloat16
      chunkbench profile table3 paged_attn_star --where n_p=1024 --where n_s="0.5 n_p" --out why.png
      chunkbench profile gate.yaml my_kernel --rounds 15
      chunkbench profile smoke naive --where n_s=80 --where kv_heads=2 --format json
      chunkbench profile smoke chunk_attn --where n_s=80 --where kv_heads=2 --format trace > trace.json
      chunkbench profile cpu-servers chunk_llama_radix --where n_p=1088 --where clients=32
    """,
)
@click.argument("experiment", metavar="EXPERIMENT")
@click.argument("implementation", metavar="IMPLEMENTATION")
@click.option(
    "--where",
    multiple=True,
    metavar="AXIS=VALUE",
    help="Select the points with this value of an axis. Repeat it until one point is left.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    help="Use this dtype instead of the experiment's.",
)
@click.option("--threads", type=click.IntRange(1, 4096), help="CPU threads.  [default: the point's, or the machine's]")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    help="Number of timed rounds, or of arrival seeds.  [default: 7 rounds, 1 arrival seed]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File of the picture (.svg, .png, .pdf), or a folder for the picture.  [default: results/profiles]",
)
@format_option("documents", "data", others=["trace"])
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.pass_context
def command(
    ctx: click.Context,
    experiment: str,
    implementation: str,
    where: tuple[str, ...],
    dtype: str | None,
    threads: int | None,
    rounds: int | None,
    out: Path | None,
    form: str,
    quiet: bool,
) -> None:
    """Show what limits IMPLEMENTATION at one point of EXPERIMENT, on this machine's CPU.

    `kind: serving`: the command measures the system in a closed loop, and shows the gap between two tokens of an
    answer: products, writing K/V, attention, head, sampling, scheduling, and what is outside of steps (HTTP). Beside
    them stand the least times at this machine's peaks. Servers other than this project's tell no parts.

    `kind: decode`: the command times decode with cold and warm caches and with one thread, and shows the machine's
    peaks beside these times. With this project's CPU kernels it also shows what each thread did when, and how long
    reading alone and computing alone take; `--format trace` prints this as a timeline that Perfetto opens. It profiles
    the step in the middle of n_c.

    It changes no run. Exit code: 2 for wrong usage, or if the implementation cannot run here or not at this point; 3
    if it is incorrect, raised, crashed or ran out of time.
    """
    from chunkbench.bench import workload
    from chunkbench.bench.experiment.load import read_selection
    from chunkbench.bench.experiment.point import Case
    from chunkbench.bench.runner.profiling import only_point, profile
    from chunkbench.bench.runner.target import resolve_target
    from chunkbench.report.figures import PICTURES, save
    from chunkbench.report.figures.style import styled
    from chunkbench.report.numbers import count
    from chunkbench.run_error import RunError
    from chunkbench.text_file import did_you_mean
    from chunkbench.workloads.decode import DecodeWorkload
    from chunkbench.workloads.decode.profile_document import document
    from chunkbench.workloads.decode.profile_figure import draw
    from chunkbench.workloads.decode.profile_trace import trace_json
    from chunkbench.workloads.decode.spec import DecodeExperiment
    from chunkbench.workloads.serving.spec import ServingExperiment

    if out is not None and out.suffix in PICTURES and out.is_dir():
        raise click.BadParameter(f"{out} is a folder, and a picture would have its name", param_hint="--out")
    if out is not None and out.suffix not in ("", *PICTURES) and not out.is_dir():
        raise click.BadParameter(f"{out}: pictures end in {', '.join(PICTURES)}", param_hint="--out")
    loaded = _experiment(experiment, dtype)
    work = workload.of(loaded)
    known = work.implementations().names()
    if implementation not in known:
        hint = did_you_mean(implementation, known)
        raise click.BadParameter(f"there is no {implementation}{hint}", param_hint="IMPLEMENTATION")
    target = resolve_target(loaded)
    accepted = read_selection(axes_of(where, "--where"), loaded.POINT, "--where")
    try:
        point = only_point(loaded.points(target.device, target.dtype), accepted, experiment)
    except RunError as error:
        fail(error)
    if threads is not None:
        point = point.model_copy(update={"threads": threads})
    case = Case(point, implementation)
    announce = (lambda text: None) if quiet else status_line
    if isinstance(loaded, ServingExperiment):
        if out is not None or form == "trace":
            raise click.UsageError("a server's profile is a table: leave --out and --format trace out")
        if point.clients is None:
            fail(f"{loaded.name}: this point has no closed loop; choose a point with --where clients=NUMBER")
    picture = out if out is not None and out.suffix in PICTURES else _picture(out, loaded.name, implementation)
    picture.parent.mkdir(parents=True, exist_ok=True)
    log = picture.with_name(f"{picture.name}.log")
    if isinstance(loaded, ServingExperiment):
        _serve(ctx, loaded, target, case, rounds or 1, form, log, announce)
        return
    assert isinstance(loaded, DecodeExperiment)
    assert isinstance(work, DecodeWorkload)
    facts = profile(loaded, work, target, case, rounds or 7, log, announce)
    _end_unless_measured(ctx, facts.case, log)
    cpu, words = target.environment.cpu, f"{point.brief}, {point.dtype} ({loaded.name})"
    machine = f"{cpu.name}, {count(cpu.cores, 'core')}"
    try:
        if form == "trace":
            click.echo(trace_json(facts, words, machine), nl=False)
        else:
            show(document(facts, words, machine), form)
    except RunError as error:
        fail(error)
    with styled():
        save(draw(facts, words, machine), picture)
    click.echo(f"\npicture: {picture}", err=form != "table")


def _serve(
    ctx: click.Context,
    experiment: ServingExperiment,
    target: Target,
    case: Case,
    seeds: int,
    form: str,
    log: Path,
    announce: Callable[[str], None],
) -> None:
    """Measure a system at one point, and print its profile."""
    from chunkbench.bench.runner.passes import Budget, Workplace
    from chunkbench.workloads.serving.gap import profile
    from chunkbench.workloads.serving.measure import ServingMeasurer

    own = experiment.model_copy(
        update={"implementations": (case.implementation,), "arrival_seeds": seeds, "equal_answers": 0}
    )
    log.touch()
    measurer = ServingMeasurer(own, target, [case.point], Workplace(log))
    try:
        budget = Budget(experiment.budget_s)
        (facts,) = measurer.measure([case.point], {case.point: [case]}, budget, announce)[case.point]
    finally:
        measurer.close()
    _end_unless_measured(ctx, facts, log)
    show(profile(facts, target), form)


def _end_unless_measured(ctx: click.Context, facts: Result, log: Path) -> None:
    """End the command with an error if the case was not measured. Removes the log if the error does not name it."""
    from chunkbench.bench.store import FAILED, MEASURED

    status_line("")
    failed = facts.status not in MEASURED
    printed = f" (its traceback or output: {log})" if failed and log.stat().st_size else ""
    if not printed:
        log.unlink()
    if failed:
        click.echo(f"chunkbench profile: {facts.implementation}: {facts.status}: {facts.reason}{printed}", err=True)
        ctx.exit(3 if facts.status in FAILED else 2)


def _experiment(name: str, dtype: str | None) -> Experiment:
    """The experiment on a CPU."""
    from chunkbench.workloads.decode.spec import DecodeExperiment
    from chunkbench.workloads.serving.spec import ServingExperiment

    loaded = choose_experiment(name, Changes(dtype=dtype))
    if not isinstance(loaded, DecodeExperiment | ServingExperiment):
        fail(f"{name} is of `kind: {loaded.kind}`; only points of `kind: decode` and `kind: serving` can be profiled")
    if loaded.device == "cuda":
        fail(f"{name} is for `device: cuda`; only a CPU can be profiled")
    return loaded.model_copy(update={"device": "cpu"})


def _picture(folder: Path | None, experiment: str, implementation: str) -> Path:
    return (folder or PROFILES) / f"{new_run(f'{experiment}-{implementation}').name}.svg"
