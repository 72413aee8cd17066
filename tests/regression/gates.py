"""Recordings and gates without a display."""

from __future__ import annotations

from pathlib import Path

from chunkbench.cli.progress import RepeatProgress
from chunkbench.experiment import TimedExperiment
from chunkbench.regression.compare import Options
from chunkbench.regression.gate import gate
from chunkbench.regression.job import Job, Repeats
from chunkbench.regression.recording import Recording, record, repeater
from chunkbench.regression.verdicts import Comparison
from chunkbench.runner.target import resolve
from chunkbench.store import Run, open_runs


def recorded(experiment: TimedExperiment, folder: Path, processes: int = 1, first: int = 1) -> list[Run]:
    """Record an experiment, or add to its recording."""
    with (
        RepeatProgress(quiet=True) as progress,
        repeater(Job(experiment, resolve(experiment), folder, progress)) as measuring,
    ):
        runs, interrupted = record(measuring, processes, first)
    assert len(runs) == processes
    assert not interrupted
    return runs


def gated(
    experiment: TimedExperiment,
    recording: Path,
    repeats: Repeats,
    runs: list[Run] | None = None,
    options: Options = Options(),  # noqa: B008
    as_recorded: bool = False,
    program: tuple[str, ...] = (),
) -> Comparison:
    """Gate against a recording; the runs lie beside it, in `out`."""
    with RepeatProgress(quiet=True) as progress:
        job = Job(experiment, resolve(experiment), recording.parent / "out", progress)
        base = Recording(recording, runs or open_runs(recording))
        comparison = gate(job, base, options, repeats, as_recorded, list(program)).comparison
    assert comparison is not None
    return comparison
