"""Measures replays: one job for each manager and arrival seed. As many jobs run at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from time import monotonic
from typing import Any, cast

from chunkbench.bench.environment import usable_threads
from chunkbench.bench.experiment.point import Case
from chunkbench.bench.experiment.values import parse_duration
from chunkbench.bench.runner.case_facts import now
from chunkbench.bench.runner.dry_run import list_plan
from chunkbench.bench.runner.passes import Budget
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store.results import Status
from chunkbench.lifetime import follow
from chunkbench.limits import no_locks
from chunkbench.run_error import CannotRunError
from chunkbench.workloads.replay.job import Answered, ReplayJob, compute
from chunkbench.workloads.replay.measured import fitted
from chunkbench.workloads.replay.methods import MANAGERS
from chunkbench.workloads.replay.paper_a100 import Opt13bA100, PaperA100
from chunkbench.workloads.replay.result import ReplayPoint, ReplayResult
from chunkbench.workloads.replay.spec import PAGED_ATTENTION, PAPER, ReplayExperiment
from chunkbench.workloads.replay.step_time import Constant, StepTime, WithSwaps, copy_rate

_POLL_S = 0.2
PAPER_HOST_S = 0.004
"""Seconds of a step outside of the kernels whose times the paper prints. The value is fitted: with it, replays come
closest to the paper's Table 4.
"""


class ReplayMeasurer:
    """Computes the replays of a run's points."""

    def __init__(self, experiment: ReplayExperiment, target: Target) -> None:
        """Fit the step times if a run of servers gives them. Raises `RunError` if they cannot be fitted."""
        self._experiment, self._target, self._times = experiment, target, step_times(experiment)
        self.styles = MANAGERS.styles(experiment.implementations)
        self._pool: ProcessPoolExecutor | None = None

    def measure(
        self,
        points: Sequence[ReplayPoint],
        cases_of: Mapping[ReplayPoint, Sequence[Case[ReplayPoint]]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> Mapping[ReplayPoint, Sequence[ReplayResult]]:
        """Replay all managers at a point with every arrival seed."""
        (point,) = points
        started_at = now()
        experiment = self._experiment
        jobs = {
            (case.implementation, seed): ReplayJob(
                case.implementation,
                point,
                f"{experiment.seed} {seed}",
                seed,
                experiment.requests,
                experiment.longest,
                experiment.prompt_budget,
                experiment.truncate_prompt_tokens,
                self._step_time(case.implementation, point),
            )
            for case in cases_of[point]
            for seed in range(experiment.arrival_seeds)
        }
        answers = self._compute(jobs, budget, announce)
        return {
            point: [
                self._facts(
                    case, [answers[case.implementation, seed] for seed in range(experiment.arrival_seeds)], started_at
                )
                for case in cases_of[point]
            ]
        }

    def _step_time(self, manager: str, point: ReplayPoint) -> StepTime:
        """A manager's model of step times; if the manager swaps, with the time of copies."""
        time = self._times[manager]
        if not MANAGERS.load(manager).swaps:
            return time
        # A piece is the K, or the V, of a block in one layer.
        piece_bytes = point.block_size * point.layer_token_bytes // 2
        rate = copy_rate(piece_bytes)
        words = f"this machine copies pieces of swapped blocks of {piece_bytes / 1024:.3g} KiB at {rate / 1e9:.3g} GB/s"
        return WithSwaps(time, token_bytes(point) / rate, words)

    def close(self) -> None:
        if self._pool is not None:
            for process in list(cast("dict[int, Any]", self._pool._processes).values()):
                process.kill()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _compute(
        self,
        jobs: Mapping[tuple[str, int], ReplayJob],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> dict[tuple[str, int], Answered | tuple[Status, str]]:
        """The answer of each job, or the status and reason if it has none."""
        answers: dict[tuple[str, int], Answered | tuple[Status, str]] = {}
        lost = False
        while len(answers) < len(jobs):
            left = {name: job for name, job in jobs.items() if name not in answers}
            if lost:  # one by one, so that if a process is lost again, its replay is known
                left = dict([next(iter(left.items()))])
            kept = self._compute_until_limit(left, answers, len(jobs), budget, announce)
            lost = lost or not kept
        return answers

    def _compute_until_limit(
        self,
        jobs: Mapping[tuple[str, int], ReplayJob],
        answers: dict[tuple[str, int], Answered | tuple[Status, str]],
        asked: int,
        budget: Budget,
        announce: Callable[[str], None],
    ) -> bool:
        """Add the answers of these jobs; `asked` is the number of answers that the point needs. If a job exceeds the
        time limit, all processes are ended, and the unfinished jobs are left for later.

        Returns False if a process died. That ends all other processes too; if the job was the only one, its status is
        `crashed`.
        """
        if self._pool is None:
            # Forked processes would inherit the locks of this process's threads.
            context = multiprocessing.get_context("spawn")
            try:
                self._pool = ProcessPoolExecutor(usable_threads(), context, follow, (os.getpid(),))
            except OSError as error:
                raise CannotRunError(no_locks(error)) from None
        futures: dict[Future[Answered], tuple[str, int]] = {}
        try:
            for name, job in jobs.items():
                futures[self._pool.submit(compute, job)] = name
        except BrokenProcessPool:
            self.close()
            return False
        limit = self._experiment.case_limit_s
        started: dict[Future[Answered], float] = {}
        pending = set(futures)
        while pending:
            done, pending = wait(pending, _POLL_S)
            broken = [future for future in done if isinstance(future.exception(), BrokenProcessPool)]
            for future in done.difference(broken):
                answers[futures[future]] = _answer(future)
            budget.share_done = len(answers) / asked
            if broken:
                self.close()
                if len(jobs) == 1:
                    answers[futures[broken[0]]] = "crashed", "the process of the replay died"
                return False
            for future in pending:
                if future.running():
                    started.setdefault(future, monotonic())
            running = sorted({futures[future][0] for future in pending if future in started})
            announce(f"{len(pending)} replays to go; {', '.join(running[:3])}")
            late = [future for future in pending if future in started and monotonic() - started[future] > limit]
            if late:
                for future in late:
                    answers[futures[future]] = "timeout", f"the replay took longer than {limit:g} s"
                self.close()
                return True
        return True

    def _facts(
        self, case: Case[ReplayPoint], answers: Sequence[Answered | tuple[Status, str]], started_at: str
    ) -> ReplayResult:
        kind = MANAGERS.load(case.implementation)
        computed = [answer for answer in answers if isinstance(answer, Answered)]
        failures = [answer for answer in answers if not isinstance(answer, Answered)]
        status, reason = failures[0] if failures else ("ok", "")
        latencies = [answer.normalized_s for answer in computed if answer.normalized_s is not None]
        if not failures and not latencies and computed:
            status, reason = "unsupported", computed[0].reason
        complete = not failures and len(latencies) == len(answers)
        return ReplayResult.of_case(
            case,
            experiment=self._experiment.name,
            label=kind.label,
            status=status,
            reason=reason,
            us_per_token=tuple(latency * 1e6 for latency in latencies) if complete else (),
            seed=self._experiment.seed,
            started_at=started_at,
            machine=self._target.machine,
            requests_per_s=computed[0].requests_per_s if computed else None,
            capacity=computed[0].capacity if computed else 0,
            block_tokens=computed[0].block_tokens if computed else 0,
            token_bytes=token_bytes(case.point),
            step_time=self._step_time(case.implementation, case.point).words,
            replays=tuple(answer.replay for answer in computed if answer.replay is not None),
        )


def _answer(future: Future[Answered]) -> Answered | tuple[Status, str]:
    try:
        return future.result()
    except FileNotFoundError as error:
        return "unavailable", str(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def step_times(experiment: ReplayExperiment) -> dict[str, StepTime]:
    """The model of step times for each manager. Raises `RunError` if step times cannot be fitted."""
    kinds = {name: MANAGERS.load(name) for name in experiment.implementations}
    if experiment.step_time == PAGED_ATTENTION:
        return dict.fromkeys(kinds, Opt13bA100())
    if experiment.step_time == PAPER:
        return {name: PaperA100(kind.kernel, PAPER_HOST_S) for name, kind in kinds.items()}
    try:
        model: StepTime = Constant(parse_duration(experiment.step_time))
    except ValueError:
        model = fitted(experiment.step_time)
    return dict.fromkeys(kinds, model)


def token_bytes(point: ReplayPoint) -> int:
    """Bytes of K and V of a token in all layers."""
    return point.layer_token_bytes * point.model.num_hidden_layers


def describe(experiment: ReplayExperiment, target: Target) -> str:
    """The plan of a run, as text."""
    words = f"{experiment.arrival_seeds} arrival seeds of {experiment.requests} requests for each manager, "
    words += f"on {usable_threads()} cores; replays, nothing is measured"
    return list_plan(experiment, target, MANAGERS, words)
