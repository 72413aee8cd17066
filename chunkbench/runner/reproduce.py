"""The paper's experiments one after the other, each in a run of its own; what is finished is not measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chunkbench.experiment import Experiment
from chunkbench.runner.run import Listener, run_experiment
from chunkbench.runner.target import resolve
from chunkbench.store import Run, RunError, open_run

EXPERIMENTS = (
    "table1",
    "memory",
    "table3",
    "figure3",
    "figure4",
    "no-tpp",
    "break-even",
    "chunk-size",
    "heads",
    "prompts",
)
"""The paper's own first, then what explains them."""


@dataclass(frozen=True)
class Reproduced:
    """The runs that there are, in the order of their experiments."""

    runs: Sequence[Run]
    interrupted: bool


def within(experiments: Sequence[Experiment], budget_s: float) -> list[Experiment]:
    """The same experiments with budgets that add up to `budget_s`, in the proportion of their own."""
    whole = sum(experiment.budget_s for experiment in experiments)
    return [one.model_copy(update={"budget_s": one.budget_s * budget_s / whole}) for one in experiments]


def reproduce(
    experiments: Sequence[Experiment], out: Path, listener: Listener, say: Callable[[str], None]
) -> Reproduced:
    """Run every experiment in a folder of its name below `out`; go on with those that were cut short.

    Raises `RunError` where a folder holds a run of another revision, machine or experiment that is not finished.
    """
    runs: list[Run] = []
    for number, experiment in enumerate(experiments, start=1):
        folder = out / experiment.name
        known = _open(folder)
        if known is not None and known.manifest.interrupted is False:
            say(f"[{number}/{len(experiments)}] {experiment.name}: already measured, in {folder}")
            runs.append(known)
            continue
        say(f"[{number}/{len(experiments)}] {experiment.name}: {experiment.title}")
        command = ["chunkbench", "run", experiment.path.removesuffix(".yaml")]
        outcome = run_experiment(experiment, resolve(experiment), folder, known is not None, command, listener)
        if outcome.run.cases:
            runs.append(outcome.run)
        if outcome.interrupted:
            return Reproduced(runs, interrupted=True)
    return Reproduced(runs, interrupted=False)


def _open(folder: Path) -> Run | None:
    try:
        return open_run(folder)
    except RunError:
        return None  # nothing there; what is there and cannot be used, the run itself refuses
