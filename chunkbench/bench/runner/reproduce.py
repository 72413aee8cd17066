"""Runs the paper's experiments one after the other, each as a run of its own. Finished runs are skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chunkbench.bench.experiment import Experiment
from chunkbench.bench.runner.executor import Executor, Listener
from chunkbench.bench.runner.run import run_experiment
from chunkbench.bench.store import Run, open_run
from chunkbench.run_error import CannotRunError, RunError

KERNELS = (
    "table1", "memory", "table3", "figure3", "figure4", "no-tpp", "break-even", "chunk-size", "heads", "prompts",
)  # fmt: skip
"""Experiments on kernels: first the paper's own experiments, then those that explain their results."""
EXPERIMENTS = (
    *KERNELS, "paged-kernel", "replay-managers", "replay-caches", "replay-policies", "replay-table4", "replay-paged",
    "replay-paged-answers", "replay-paged-prefix", "replay-paged-chat", "replay-paged-blocks", "table4", "figure5",
)  # fmt: skip
"""All experiments that `reproduce` runs, in this order. Servers come last: they take longest, and not every machine can
run them."""


@dataclass(frozen=True)
class Reproduced:
    """The runs that have cases, in the order of their experiments."""

    runs: Sequence[Run]
    interrupted: bool


def within(experiments: Sequence[Experiment], budget_s: float) -> list[Experiment]:
    """Copies of the experiments with budgets that add up to `budget_s`. All budgets change by the same factor."""
    whole = sum(experiment.budget_s for experiment in experiments)
    scale = budget_s / whole
    return [experiment.model_copy(update={"budget_s": experiment.budget_s * scale}) for experiment in experiments]


def reproduce(
    experiments: Sequence[Experiment],
    out: Path,
    executor_for: Callable[[Experiment, Path | None], Executor],
    listener: Listener,
    say: Callable[[str], None],
) -> Reproduced:
    """Run every experiment in the folder `out`/name, and resume interrupted runs.

    Experiments that cannot run at all are left out. `executor_for` makes the executor of an experiment. Its argument is
    the folder of the run to resume, or None. Raises `RunError` if a folder holds an unfinished run of another revision,
    machine or experiment.
    """
    runs: list[Run] = []
    for number, experiment in enumerate(experiments, start=1):
        folder = out / experiment.name
        recorded = _open(folder)
        if recorded is not None and recorded.manifest.interrupted is False:
            say(f"[{number}/{len(experiments)}] {experiment.name}: already measured, in {folder}")
            runs.append(recorded)
            continue
        say(f"[{number}/{len(experiments)}] {experiment.name}: {experiment.title}")
        command = ["chunkbench", "run", experiment.path.removesuffix(".yaml")]
        try:
            executor = executor_for(experiment, folder if recorded is not None else None)
            outcome = run_experiment(experiment, executor, folder, recorded is not None, command, listener)
        except CannotRunError as error:
            say(f"left out: {error}")
            continue
        if outcome.run.cases:
            runs.append(outcome.run)
        if outcome.interrupted:
            return Reproduced(runs, interrupted=True)
    return Reproduced(runs, interrupted=False)


def finished(folder: Path) -> bool:
    recorded = _open(folder)
    return recorded is not None and recorded.manifest.interrupted is False


def _open(folder: Path) -> Run | None:
    try:
        return open_run(folder)
    except RunError:
        return None  # no run, or an unusable one, which `run_experiment` refuses
