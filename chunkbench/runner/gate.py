"""The gate: measure an experiment in several processes, compare with a recording, measure again what looks changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chunkbench.analysis.compare import Options, compare
from chunkbench.analysis.verdict import EXACT, CaseVerdict, Comparison
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Point
from chunkbench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.runner.conduct import Conduct
from chunkbench.runner.identity import differences, identity
from chunkbench.runner.run import Listener, Target, run_experiment
from chunkbench.store import Run, RunError, open_runs

_IMPORT_LIMIT_S = 300.0


@dataclass(frozen=True)
class Gated:
    """What a gate found."""

    comparison: Comparison | None
    """None when it was interrupted before there was anything to compare."""
    interrupted: bool


class Repeater:
    """Measures an experiment several times, each time in a process of its own.

    Processes differ: in where their memory lies, and in when they ran. What is measured in one process only may be
    off by more than a threshold, whatever the number of rounds. They are forked from one that has imported everything,
    and so start at once.
    """

    def __init__(self, target: Target, parent: WorkerClient, command: Sequence[str], listener: Listener) -> None:
        self._target, self._parent, self._command, self._listener = target, parent, command, listener

    def measure(
        self, experiment: Experiment, out: Path, processes: int, points: frozenset[Point] | None = None, first: int = 1
    ) -> tuple[list[Run], bool]:
        """Runs in `out`/`first` and the numbers that follow, which share the experiment's budget; and whether it was
        interrupted."""
        one = _repeated(experiment, processes)
        conduct = Conduct(brief=True, points=points, start_worker=lambda _: self._parent.fork())
        runs: list[Run] = []
        for number in range(first, first + processes):
            path = out / str(number)
            outcome = run_experiment(one, self._target, path, False, self._command, self._listener, conduct)
            if outcome.interrupted:
                shutil.rmtree(path, ignore_errors=True)  # half a process would lack cases that the others have
                return runs, True
            runs.append(outcome.run)
        return runs, False


def preloaded(start: Callable[[], WorkerClient], implementations: Sequence[str]) -> WorkerClient:
    """A worker that has imported the implementations, without those that take it down: they will do so to a child,
    and be a row that says so. Raises what `start` raises."""
    left_out: set[str] = set()
    while True:
        worker = start()
        try:
            for name in implementations:
                if name not in left_out:
                    worker.ask("preload", _IMPORT_LIMIT_S, implementations=[name])
            return worker
        except (WorkerCrashed, WorkerTimeout):
            worker.kill()
            left_out.add(name)
        except BaseException:
            worker.kill()
            raise


@contextmanager
def repeater(
    experiment: Experiment,
    target: Target,
    out: Path,
    command: Sequence[str],
    listener: Listener,
    worker: Sequence[str] | None = None,
) -> Iterator[Repeater]:
    """A repeater whose parent process has imported the experiment's implementations. `worker` is another command line
    for it. Raises `RunError` where `out` cannot be written or no worker starts."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        parent = preloaded(
            lambda: WorkerClient(out / "worker.log", list(worker) if worker else None), experiment.implementations
        )
    except OSError as error:
        raise RunError(f"{out}: cannot be written: {error.strerror}") from error
    except (WorkerCrashed, WorkerTimeout, WorkerError) as error:
        raise RunError(f"{out}: a worker process does not start: {error}") from None
    try:
        yield Repeater(target, parent, command, listener)
    finally:
        parent.kill()


def gate(
    experiment: Experiment,
    repeater: Repeater,
    recording: Sequence[Run],
    options: Options,
    processes: int,
    again: int,
    out: Path,
    target: Target,
) -> Gated:
    """Measure into `out`/head; what looks slower or faster, up to `again` times more, into `out`/again-1 and so on.

    Each takes the experiment's budget. Raises `RunError` as `run_experiment` does, and `NothingToCompare`.
    """
    head, interrupted = repeater.measure(experiment, out / "head", processes)
    if not head:
        return Gated(None, interrupted)
    repeats: list[list[Run]] = []

    def measure(number: int, changed: frozenset[str]) -> bool:
        narrowed, points = _only(experiment, target, changed)
        runs, interrupted = repeater.measure(narrowed, out / f"again-{number}", processes, points)
        if runs:
            repeats.append(runs)
        return interrupted

    return look_again(
        lambda: compare(recording, head, options, repeats), measure, again, options.threshold, interrupted
    )


def look_again(
    compared: Callable[[], Comparison],
    measure: Callable[[int, frozenset[str]], bool],
    again: int,
    threshold: float,
    interrupted: bool,
) -> Gated:
    """Compare, and while something looks changed, up to `again` times, measure that once more and compare anew.

    `measure` is given the number of the re-measurement and the keys of the cases, and says whether it was interrupted.
    """
    comparison = compared()
    for number in range(1, again + 1):
        changed = frozenset(case.key for case in comparison.cases if _looks_changed(case, threshold))
        if interrupted or not changed:
            break
        interrupted = measure(number, changed)
        comparison = compared()
    return Gated(comparison, interrupted)


def next_number(recording: Path, experiment: Experiment, target: Target) -> int:
    """Number of the run with which a recording goes on: 1 for a new one.

    Raises `RunError` where the folder holds something else, or runs of another experiment, revision or machine.
    """
    if not recording.exists() or not any(recording.iterdir()):
        return 1
    runs = open_runs(recording)
    if runs[0].path == recording:
        raise RunError(f"{recording}: is a run, not a recording; choose another folder")
    current = identity(_repeated(experiment, 1), target.environment, target.device, target.dtype)
    reasons = differences(runs[0].manifest.get("identity", {}), current)
    if reasons:
        raise RunError(f"{recording}: cannot be added to: {'; '.join(reasons)}. Choose a new folder")
    return max(int(run.path.name) for run in runs) + 1


def _repeated(experiment: Experiment, processes: int) -> Experiment:
    """The experiment as one of several processes measures it: rounds until its share of the budget is used up, since
    no interval is narrow enough to stop early."""
    changes = {"budget_s": experiment.budget_s / processes, "precision": 1e-6, "max_rounds": 1_000_000}
    return experiment.model_copy(update=changes)


def _looks_changed(case: CaseVerdict, threshold: float) -> bool:
    """Whether measuring a case again could change what is said of it: it differs, and by more than the threshold as far
    as one can see, but no later measurement has agreed yet."""
    if case.metric in EXACT or case.ratio is None or case.low is None or case.high is None:
        return False
    if case.verdict in ("slower", "faster"):
        return not case.remeasured
    differs = case.low > 1 or case.high < 1
    return case.verdict == "inconclusive" and differs and not 1 / (1 + threshold) <= case.ratio <= 1 + threshold


def _only(experiment: Experiment, target: Target, keys: frozenset[str]) -> tuple[Experiment, frozenset[Point]]:
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
