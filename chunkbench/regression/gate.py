"""The gate: measure an experiment in turns with a recorded build, compare, measure again what looks changed."""

from __future__ import annotations

from collections.abc import Sequence

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Point
from chunkbench.regression.compare import Options, compare
from chunkbench.regression.environments import differences
from chunkbench.regression.job import Job, Repeats
from chunkbench.regression.paired import Turns
from chunkbench.regression.recorded_build import unpacked_build, why_unusable
from chunkbench.regression.recording import Recording, repeater
from chunkbench.regression.remeasure import GateResult, remeasure_changed
from chunkbench.regression.sides import BaseBuild, measure_and_compare, sides
from chunkbench.runner.run import sigterm_as_interrupt
from chunkbench.runner.target import Target
from chunkbench.store import Manifest, Run, writing


def gate(
    job: Job,
    recording: Recording,
    options: Options,
    repeats: Repeats,
    as_recorded: bool = False,
    worker: Sequence[str] | None = None,
) -> GateResult:
    """Measure the job, compare it with the recording, and measure again what looks changed.

    Every measurement takes the experiment's budget. The build in the recording is measured again, in turns with this
    revision: times of another hour are no fair base. The recorded times are the base only if the build does not run
    here, or if `as_recorded` is set. `worker` replaces the command line of this revision's worker.
    Raises `RunError` and `NothingToCompare`.
    """
    with writing(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    obstacle = "" if as_recorded else why_unusable(recording.build)
    if not as_recorded and not obstacle:
        return _against_recorded_build(job, recording, options, repeats, worker)
    result = _against_recorded_times(job, recording, options, repeats, worker)
    warning = f"{recording.path}: {obstacle}: compared with the recorded times, which is less certain"
    return _with_warnings(result, [warning] if obstacle else [])


def _against_recorded_build(
    job: Job, recording: Recording, options: Options, repeats: Repeats, worker: Sequence[str] | None
) -> GateResult:
    recorded = recording.runs[0].manifest
    facts = recorded.model_dump(mode="json", include={"git", "chunkbench_version"})
    try:
        with (
            sigterm_as_interrupt(),
            unpacked_build(recording.build) as folder,
            sides(job, BaseBuild(folder, str(recording.path), facts), worker) as (base, head),
        ):
            turns = Turns(job, base, head)
            result = measure_and_compare(
                turns, options, repeats, lambda runs: _keep_recorded_cases(runs, recording.runs)
            )
    except KeyboardInterrupt:
        return GateResult(None, interrupted=True)
    return _with_warnings(result, _changes_since(recorded, turns.manifest))


def _changes_since(recorded: Manifest, current: Manifest) -> list[str]:
    warnings = []
    for difference in differences(recorded, current):
        hint = "" if difference.machine else " (only a comparison with the recorded times shows its effect)"
        warnings.append(
            f"since the recording, {difference.what} changed from {difference.base} to {difference.head}; "
            f"both builds were measured with {difference.head}{hint}"
        )
    return warnings


def _keep_recorded_cases(base: list[Run], recorded: Sequence[Run]) -> None:
    """Give BASE exactly the recorded cases: other cases are new, and recorded cases that HEAD lacks are missing."""
    recorded_cases = {case.key: case for run in recorded for case in run.cases}
    lacking = recorded_cases.keys() - {case.key for case in base[0].cases}
    for run in base:
        run.cases = [case for case in run.cases if case.key in recorded_cases]
    base[0].cases += [case for key, case in recorded_cases.items() if key in lacking]


def _with_warnings(result: GateResult, warnings: Sequence[str]) -> GateResult:
    if result.comparison is None:
        return result
    changes = {"warnings": (*result.comparison.warnings, *warnings)}
    return GateResult(result.comparison.model_copy(update=changes), result.interrupted)


def _against_recorded_times(
    job: Job, recording: Recording, options: Options, repeats: Repeats, worker: Sequence[str] | None
) -> GateResult:
    """Measure into `out`/head, `out`/again-1, `out`/again-2, ... and compare with the recorded runs."""
    with repeater(job, worker) as measuring:
        head, interrupted = measuring.measure(job.experiment, job.out / "head", repeats.processes)
        if not head:
            return GateResult(None, interrupted)
        remeasured: list[list[Run]] = []

        def measure(number: int, changed: frozenset[str]) -> bool:
            experiment, points = _narrowed(job.experiment, job.target, changed)
            runs, interrupted = measuring.measure(experiment, job.out / f"again-{number}", repeats.processes, points)
            if runs:
                remeasured.append(runs)
            return interrupted

        return remeasure_changed(
            lambda: compare(recording.runs, head, options, remeasured),
            measure,
            repeats.again,
            options.threshold,
            interrupted,
        )


def _narrowed(
    experiment: TimedExperiment, target: Target, keys: frozenset[str]
) -> tuple[TimedExperiment, frozenset[Point]]:
    """The experiment with only the implementations of the cases with these keys; and the points of these cases."""
    chosen = [
        (point, case.implementation)
        for point in experiment.points(target.device, target.dtype)
        for case in experiment.cases(point)
        if case.key in keys
    ]
    names = {implementation for _, implementation in chosen}
    kept = tuple(name for name in experiment.implementations if name in names)
    baseline = experiment.baseline if experiment.baseline in names else kept[0]
    narrowed = experiment.model_copy(update={"implementations": kept, "baseline": baseline})
    return narrowed, frozenset(point for point, _ in chosen)
