"""The gate: measure an experiment beside a recorded build, compare, measure again what looks changed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Point
from chunkbench.regression.compare import Options, compare
from chunkbench.regression.environments import differences
from chunkbench.regression.paired import Turns
from chunkbench.regression.recorded_build import refusal, unpacked
from chunkbench.regression.recording import BUILD, repeater
from chunkbench.regression.remeasure import Gated, look_again
from chunkbench.regression.sides import compared, sides
from chunkbench.runner.run import Listener, sigterm_as_interrupt
from chunkbench.runner.target import Target
from chunkbench.store import Run, writing


def gate(
    experiment: TimedExperiment,
    target: Target,
    recording: Path,
    recorded: Sequence[Run],
    options: Options,
    processes: int,
    again: int,
    out: Path,
    listener: Listener,
    as_recorded: bool = False,
    worker: Sequence[str] | None = None,
) -> Gated:
    """Measure into `out`, then again, up to `again` times, what looks changed; each time for the experiment's budget.

    The build that the `recording` keeps is measured anew, in turns with this revision: what a kernel took in another
    hour is no fair measure of it. Where the build does not run here, or `as_recorded`, the `recorded` times are
    compared with. `worker` is another command line for this revision's worker. Raises `RunError`, `NothingToCompare`.
    """
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    refused = "" if as_recorded else refusal(recording / BUILD)
    if as_recorded or refused:
        found = _as_recorded(experiment, target, recorded, options, processes, again, out, listener, worker)
        told = f"{recording}: {refused}: compared with the times as recorded, which tells less"
        return _warned(found, [told] if refused else [])
    kept = recorded[0].manifest.model_dump(mode="json", include={"git", "chunkbench_version"})
    try:
        with (
            sigterm_as_interrupt(),
            unpacked(recording / BUILD) as build,
            sides(experiment, target, out, build, str(recording), kept, worker) as both,
        ):
            turns = Turns(experiment, target, *both, out, listener)
            found = compared(turns, options, processes, again, lambda runs: _keep_recorded(runs, recorded))
    except KeyboardInterrupt:
        return Gated(None, interrupted=True)
    changed = [
        f"since the recording: {one.what}: {one.base} is {one.head} now; both builds were measured as it is now"
        + ("" if one.machine else " (only a comparison with the recorded times shows what that does)")
        for one in differences(recorded[0].manifest, turns.manifest)
    ]
    return _warned(found, changed)


def _keep_recorded(base: list[Run], recorded: Sequence[Run]) -> None:
    """Let BASE be what was recorded: cases that are new have no base, and those that are gone are missing."""
    known = {case.key: case for run in recorded for case in run.cases}
    gone = known.keys() - {case.key for case in base[0].cases}
    for run in base:
        run.cases = [case for case in run.cases if case.key in known]
    base[0].cases += [case for key, case in known.items() if key in gone]


def _warned(found: Gated, warnings: Sequence[str]) -> Gated:
    if found.comparison is None:
        return found
    told = {"warnings": (*found.comparison.warnings, *warnings)}
    return Gated(found.comparison.model_copy(update=told), found.interrupted)


def _as_recorded(
    experiment: TimedExperiment,
    target: Target,
    recorded: Sequence[Run],
    options: Options,
    processes: int,
    again: int,
    out: Path,
    listener: Listener,
    worker: Sequence[str] | None,
) -> Gated:
    """Measure into `out`/head and `out`/again-1 and so on, and compare with what was recorded."""
    command = shlex.split(options.command)
    with repeater(experiment, target, out, command, listener, worker) as measuring:
        head, interrupted = measuring.measure(experiment, out / "head", processes)
        if not head:
            return Gated(None, interrupted)
        repeats: list[list[Run]] = []

        def measure(number: int, changed: frozenset[str]) -> bool:
            narrowed, points = _only(experiment, target, changed)
            runs, interrupted = measuring.measure(narrowed, out / f"again-{number}", processes, points)
            if runs:
                repeats.append(runs)
            return interrupted

        return look_again(
            lambda: compare(recorded, head, options, repeats), measure, again, options.threshold, interrupted
        )


def _only(
    experiment: TimedExperiment, target: Target, keys: frozenset[str]
) -> tuple[TimedExperiment, frozenset[Point]]:
    """The experiment with the points and implementations of these cases alone."""
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
