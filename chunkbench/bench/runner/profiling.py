"""Profiles one implementation at one point. In each round, a worker makes one call of each kind in random order."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkbench.bench.experiment import TimedExperiment
from chunkbench.bench.experiment.point import AttentionPoint, Case, Point, PointT
from chunkbench.bench.experiment.sweep import Filter, selects
from chunkbench.bench.experiment.values import show_value
from chunkbench.bench.measure.perf_counters import NoCounters, counted
from chunkbench.bench.measure.profiler import TIMED, TRACED
from chunkbench.bench.runner.attempt import Attempt
from chunkbench.bench.runner.passes import Budget, RunOptions
from chunkbench.bench.runner.session_measurer import SessionMeasurer
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store.profile import ProfileFacts
from chunkbench.bench.store.results import DecodeResult, Peaks
from chunkbench.run_error import RunError

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import AnySessions

_COUNTED_S = 0.5
_MOST_LISTED = 40


def only_point(points: Sequence[PointT], accepted: Filter, experiment: str) -> PointT:
    """The only point that matches a filter. Raises `RunError` if no point or several points match."""
    kind = type(points[0])
    axes = {point: {axis: getattr(point, axis) for axis in kind.axes()} for point in points}
    left = [point for point in points if selects(accepted, axes[point])]
    if len(left) > 1:
        varying = [axis for axis in kind.axes() if len({axes[point][axis] for point in left}) > 1]
        lines = [_line(point, varying) for point in left[:_MOST_LISTED]]
        lines += [f"and {len(left) - _MOST_LISTED} more"] if len(left) > _MOST_LISTED else []
        heading = f"{len(left)} points are left; choose one with --where AXIS=VALUE ({', '.join(varying)}):"
        raise RunError("\n  ".join([heading, *lines]))
    for axis, values in accepted.items():
        if not any(selects({axis: values}, axes[point]) for point in points):
            values_there = ", ".join(dict.fromkeys(show_value(axes[point][axis]) for point in points))
            raise RunError(f"no point of {experiment} has this {axis}; there are {values_there}")
    if not left:
        lists = f"`chunkbench run {experiment} --dry-run` lists points"
        raise RunError(f"no point of {experiment} has all of these values; {lists}")
    return left[0]


def _line(point: Point, varying: Sequence[str]) -> str:
    """The values that distinguish the point from others, in the form of the option `--where`."""
    others = {axis: value for axis in varying if (value := getattr(point, axis)) is not None}
    return " ".join(f"{axis}={show_value(value)}" for axis, value in (point.usually_swept | others).items())


class ProfileAttempt(Attempt[TimedExperiment]):
    """Makes the profiled calls of one case. Each round also probes the machine's peaks once."""

    sampled_checks = False

    def __init__(self, rounds: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rounds = rounds
        self.seen: dict[str, Any] = defaultdict(list)
        """The fields of `ProfileFacts` besides the case."""

    def measure(
        self, cases: Sequence[Case], index: int, groups: Sequence[Sequence[str]], names: Sequence[str], time: Budget
    ) -> None:
        (case,), step = cases, self.point.n_c
        self.steps, self.steps_of = (step,), {step: (step,)}
        calls = [call for call in (*TIMED, *TRACED, "watched", "peaks") if call != "one_thread" or self.threads != 1]
        for number in range(self._rounds):
            random.Random(f"{self.experiment.seed} {number}").shuffle(calls)
            for call in tuple(calls):
                self._announce(f"round {number + 1} of {self._rounds}: {call}")
                if call == "peaks":
                    self.rounds_of[case.key].peaks.append(Peaks.model_validate(self.housekeeping("peaks")))
                    continue
                reply = self.ask(case.implementation, "profile", call=call, nonce=1 + number)
                if reply is None:
                    return
                if call == "cold":
                    self.rounds_of[case.key].add(reply, index)
                elif call in TIMED:
                    self.seen[f"{call}_us"] += reply["samples_us"]
                elif reply["seen"] is None:  # this implementation cannot show it
                    calls.remove(call)
                else:
                    self.seen[call].append(reply["seen"])
        self._announce("counting")
        try:
            self.seen["counters"] = counted(self.worker.pid, lambda: self._repeat(case.implementation))
        except NoCounters as error:
            self.seen["no_counters"] = str(error)

    def _repeat(self, name: str) -> int:
        reply = self.ask(name, "repeat", nonce=1, seconds=_COUNTED_S)
        return 1 if reply is None else int(reply["calls"])


class ProfileMeasurer(SessionMeasurer[AttentionPoint, DecodeResult]):
    """Measures one point for a profile. `attempt` holds what was recorded."""

    def __init__(self, rounds: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rounds = rounds

    def _attempt(self, *arguments: Any) -> ProfileAttempt:
        more = (self._experiment, self._work, self._traits, self._worker, *arguments, True)
        self.attempt = ProfileAttempt(self._rounds, *more)
        return self.attempt


def profile(
    experiment: TimedExperiment[AttentionPoint],
    work: AnySessions,
    target: Target,
    case: Case[AttentionPoint],
    rounds: int,
    log: Path,
    announce: Callable[[str], None],
) -> ProfileFacts:
    """Profile the decode step in the middle of n_c. Raises `RunError` if no worker starts.

    If the implementation cannot run or fails, `ProfileFacts.case` states the reason. `log`: the file for the worker's
    output.
    """
    point = case.point.model_copy(update={"n_c": (case.point.n_c + 1) // 2})
    own = experiment.model_copy(update={"implementations": (case.implementation,)})
    announce("starting a worker")
    measurer = ProfileMeasurer(rounds, work, own, target, [point], log, RunOptions())
    try:
        cases = {point: [Case(point, case.implementation)]}
        (result,) = measurer.measure([point], cases, Budget(0.0), announce)[point]
    finally:
        measurer.close()
    return ProfileFacts(case=result, l2_bytes=target.environment.cpu.l2_bytes, **measurer.attempt.seen)
