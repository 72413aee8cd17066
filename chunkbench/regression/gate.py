"""The gate: measure an experiment in turns with a recorded build, compare, measure again what looks changed."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Point
from chunkbench.regression.build import read_facts, unpacked_build, why_unusable
from chunkbench.regression.compare import Options, compare
from chunkbench.regression.environments import differences
from chunkbench.regression.job import Job, Repeats
from chunkbench.regression.paired import Turns
from chunkbench.regression.recording import Recording, repeater
from chunkbench.regression.remeasure import GateResult, remeasure_changed
from chunkbench.regression.side_build import SideBuild, installed_build
from chunkbench.regression.sides import make_sides, measure_and_compare, with_sources
from chunkbench.runner.run import sigterm_as_interrupt
from chunkbench.runner.target import Target
from chunkbench.store import Manifest, Run, RunError, writing


def gate(
    job: Job,
    recording: Recording,
    options: Options,
    repeats: Repeats,
    as_recorded: bool = False,
    program: Sequence[str] = (),
) -> GateResult:
    """Measure the job, compare it with the recording, and measure again what looks changed.

    Every measurement takes the experiment's budget. The build in the recording is measured again, in turns with this
    revision: times of another hour are no fair base. The recorded times are the base only if the build does not run
    here, or if `as_recorded` is set. `program` is a script, with its arguments, that takes the place of the program of
    HEAD's workers. Raises `RunError` and `NothingToCompare`.
    """
    with writing(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    obstacle = "" if as_recorded else _obstacle(recording)
    if not as_recorded and not obstacle:
        return _against_recorded_build(job, recording, options, repeats, program)
    result = _as_recorded(_against_recorded_times(job, recording, options, repeats, program))
    warning = f"{recording.path}: {obstacle}: compared with the recorded times, which is less certain"
    return _with_warnings(result, [warning] if obstacle else [])


def _as_recorded(result: GateResult) -> GateResult:
    """The result, marked as one against recorded times."""
    if result.comparison is None:
        return result
    settings = result.comparison.settings.model_copy(update={"as_recorded": True})
    return GateResult(result.comparison.model_copy(update={"settings": settings}), result.interrupted)


def _obstacle(recording: Recording) -> str:
    """Why the recorded build cannot be measured here. Empty if it can."""
    try:
        return why_unusable(read_facts(recording.build))
    except RunError as error:
        return str(error)


def _against_recorded_build(
    job: Job, recording: Recording, options: Options, repeats: Repeats, program: Sequence[str]
) -> GateResult:
    began, recorded = monotonic(), recording.runs[0].manifest
    facts = recorded.model_dump(mode="json", include={"git", "chunkbench_version"})
    try:
        with (
            sigterm_as_interrupt(),
            unpacked_build(recording.build, recorded.build) as build,
            installed_build(job.experiment, program) as head,
        ):
            base = SideBuild(build, str(recording.path), facts)
            _check_kept(recording, base, head)
            turns = Turns(job, *make_sides(job, base, head))
            result = measure_and_compare(
                turns, options, repeats, began, lambda runs: _keep_recorded_cases(runs, recording.runs)
            )
    except KeyboardInterrupt:
        return GateResult(None, interrupted=True)
    return with_sources(_with_warnings(result, _changes_since(recorded, turns.manifest)), base, head)


def _check_kept(recording: Recording, base: SideBuild, head: SideBuild) -> None:
    """Raise `RunError` if both sides would load a recorded implementation from one place on disk."""
    recorded = {case.implementation for run in recording.runs for case in run.cases}
    for package in head.build.facts.packages:
        unkept = sorted(recorded.intersection(package.provides) - base.build.facts.provided)
        if unkept:
            raise RunError(
                f"{recording.path}: keeps no copy of {package.name}, which provides {', '.join(unkept)}: both sides "
                "would run the files that are installed now, and no change could be seen. Record it anew, or compare "
                "with the recorded times",
                remedy="record anew or compare times",
            )


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
    job: Job, recording: Recording, options: Options, repeats: Repeats, program: Sequence[str]
) -> GateResult:
    """Measure into `out`/head, `out`/again-1, `out`/again-2, ... and compare with the recorded runs."""
    began = monotonic()
    with repeater(job, program) as measuring:
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
            began,
            job.experiment.budget_s,
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
