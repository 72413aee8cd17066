"""Measures one pass. Each memory group in turn is prepared, checked, measured in rounds, and checked again."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from chunkbench.bench.analysis.statistics import MIN_TIMED_STEPS, enough, timed_steps
from chunkbench.bench.environment import available_memory
from chunkbench.bench.experiment import TimedExperiment
from chunkbench.bench.experiment.point import Case, SessionPoint
from chunkbench.bench.runner import memory_guard
from chunkbench.bench.runner.case_facts import CaseRounds
from chunkbench.bench.runner.client import WorkerClient
from chunkbench.bench.runner.passes import Budget
from chunkbench.bench.runner.point_driver import AFTER, BEFORE, ExperimentT, PointDriver
from chunkbench.bench.runner.survey import Traits
from chunkbench.bench.store.results import Peaks

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import AnySessions


_ROUNDS = 0.85
"""Share of a memory group's progress that its rounds make. The checks after the rounds make the rest."""


class Attempt(PointDriver[ExperimentT]):
    """Prepares and checks the implementations of a point, one by one, without timing.

    `points`: the points of a pass, which differ only in n_c. Only the last point, which has the largest n_c, is
    measured; its steps include the steps of the other points. `budget`: time for the pass. `announce` receives a text
    about the current work. If `peaks`, each round probes the machine's peaks.
    """

    sampled_checks = True
    """Whether a check compares only a sample of the output rows."""

    def __init__(
        self,
        experiment: ExperimentT,
        work: AnySessions,
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        points: Sequence[SessionPoint],
        cases: Sequence[Case],
        budget: Budget,
        announce: Callable[[str], None],
        peaks: bool,
    ) -> None:
        super().__init__(experiment, work, survey, worker, points[-1], cases)
        self.steps_of: dict[int, tuple[int, ...]] = {point.n_c: () for point in points}
        """n_c -> the steps that are timed for this n_c."""
        self._budget, self._announce, self._peaks = budget, announce, peaks

    def run(self) -> None:
        """Measure until the budget is used up. The time starts now. Raises `WorkerLost` when the worker is lost."""
        time = Budget(self._budget.seconds)
        self._announce("making inputs")
        seed = self.experiment.seed
        room, l2_bytes = self._room()
        probe = memory_guard.probe_bytes(room) if self._peaks else 0
        point = self.point.as_json()
        self.threads = self.housekeeping("open", point=point, seed=seed, probe_bytes=probe)["threads"]
        usable = [name for name in self.states if self.usable(name)]
        needs = {name: self.work.needs(self.point, seed, name, self.survey[name].shares_storage) for name in usable}
        if self.point.device == "cuda":
            needs = self.plan_copies(needs, room - probe, l2_bytes)
        grouping = self.group(needs, usable, room - probe)
        for name, reason in grouping.too_large.items():
            self.states[name].fail("oom", f"predicted: {reason}")
        for index, names in enumerate(grouping.groups):
            self._measure_group(index, names, grouping.groups, needs, time)
            later = {name for group in grouping.groups[index + 1 :] for name in group}
            for name in names:
                if name not in later:
                    self.housekeeping("release", implementation=name)

    def group(self, needs: Mapping[str, int], usable: Sequence[str], room: int) -> memory_guard.Grouping:
        """Choose the memory groups. This class puts each implementation into a group of its own."""
        return memory_guard.one_by_one(needs, usable, room)

    def measure(
        self, cases: Sequence[Case], index: int, groups: Sequence[Sequence[str]], names: Sequence[str], time: Budget
    ) -> None:
        """Measure the cases of memory group `index`, whose implementations are prepared. Subclasses do the work."""

    def _room(self) -> tuple[int, int]:
        """Bytes available for K and V on the point's device, and bytes of a GPU's L2 cache."""
        if self.point.device == "cuda":
            reply = self.housekeeping("room")
            return memory_guard.room_of(reply["free_bytes"]), reply["l2_bytes"]
        # The worker reuses the memory that it kept from the last point.
        return memory_guard.room_of(available_memory() + self.worker.resident_bytes), 0

    def _measure_group(
        self,
        index: int,
        names: Sequence[str],
        groups: Sequence[Sequence[str]],
        needs: Mapping[str, int],
        time: Budget,
    ) -> None:
        """Prepare, check, measure and check again the implementations of one memory group."""
        earlier = {name for group in groups[:index] for name in group}
        for name in names:
            if name in earlier:
                continue  # the baseline stays prepared from the first group on
            self._announce(f"{self.survey[name].label}: preparing and checking")
            if self.prepare(name, needs[name]):
                self.check(name, 1, BEFORE + index, sample=self.sampled_checks)
        cases = self._alive([case for case in self.cases if case.implementation in names])
        if cases:
            self.measure(cases, index, groups, names, time)
        for place, name in enumerate(names):
            self._budget.share_done = (index + _ROUNDS + (1 - _ROUNDS) * place / len(names)) / len(groups)
            if not self.states[name].failed:
                self._announce(f"{self.survey[name].label}: checking again")
                self.check(name, self.point.n_c, AFTER + index, sample=self.sampled_checks)
                self.check_bytes(name)

    def _alive(self, cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if not self.lost_in(case)]


class TimedAttempt(Attempt[TimedExperiment]):
    """Measures the cases of a point in interleaved rounds, between the two checks."""

    sampled_checks = False

    def group(self, needs: Mapping[str, int], usable: Sequence[str], room: int) -> memory_guard.Grouping:
        return memory_guard.group(needs, usable, self.experiment.baseline, room)

    def measure(
        self, cases: Sequence[Case], index: int, groups: Sequence[Sequence[str]], names: Sequence[str], time: Budget
    ) -> None:
        """Run rounds for the group's share of the remaining time."""
        if not self.steps:
            scale = sum(map(len, groups)) / len(names)
            self._choose_steps(cases, scale, time.left_s)
        self._refuse_long(cases)
        self._rounds(self._alive(cases), index, len(groups), Budget(time.left_s / (len(groups) - index)))

    def _choose_steps(self, cases: Sequence[Case], scale: float, time_left: float) -> None:
        """Time every step if `min_rounds` rounds then fit in the time, otherwise as many evenly spread steps as fit.

        `scale` is the number of implementations in all groups over the number in this group.
        """
        n_c = self.point.n_c
        decodes = scale * sum(self.sample_s(case) for case in cases)
        appends = scale * sum(self.states[case.implementation].append_s * self.appends(case) for case in cases) * n_c
        affordable = (time_left / self._min_rounds(cases) - appends) / decodes if decodes > 0 else inf
        if affordable < n_c:  # each length gets its own evenly spread steps; the pass times the steps of all lengths
            affordable = max(MIN_TIMED_STEPS, affordable / len(self.steps_of))
        self.steps_of = {length: timed_steps(length, int(min(length, affordable))) for length in self.steps_of}
        self.steps = tuple(sorted({step for steps in self.steps_of.values() for step in steps}))

    def _min_rounds(self, cases: Sequence[Case]) -> int:
        return self.experiment.min_rounds if any(case.protocol == "strict" for case in cases) else 1

    def _refuse_long(self, cases: Sequence[Case]) -> None:
        """Fail a case in advance if its calls would overrun the time limit."""
        limit = self.experiment.case_limit_s
        for case in cases:
            calls = len(self.steps) * self._min_rounds([case])
            call_s = self.sample_s(case)
            if call_s * calls > limit:
                reason = f"predicted: one call took {call_s:.1f} s, {calls} calls overrun the limit of {limit:.0f} s"
                failing = self.states[case.implementation] if self.point.device == "cpu" else self.rounds_of[case.key]
                failing.fail("timeout", reason)

    def _rounds(self, cases: Sequence[Case], group: int, groups: int, time: Budget) -> None:
        """Run interleaved rounds until the intervals are narrow or the time is used up, but at least the minimum number
        of rounds."""
        experiment = self.experiment
        rounds_done = 0
        while cases:
            strict = [case for case in cases if case.protocol == "strict"]
            if rounds_done and not strict:
                return  # protocol paper has one round
            if strict and rounds_done >= experiment.min_rounds:
                means = [self.rounds_of[case.key].means(group) for case in strict]
                narrow = enough(means, experiment.min_rounds, experiment.precision, experiment.confidence)
                if narrow or rounds_done >= experiment.max_rounds or not time.fits_another(rounds_done):
                    return
            self._round(strict if rounds_done else cases, group, rounds_done)
            rounds_done += 1
            cases = self._alive(cases)
            by_rounds = rounds_done / self._min_rounds(cases)
            by_time = time.spent_s / max(1e-9, time.seconds)
            share = min(1.0, by_rounds, max(by_time, by_rounds / 2))
            self._budget.share_done = (group + _ROUNDS * share) / groups

    def _round(self, cases: Sequence[Case], group: int, number: int) -> None:
        """One round: all cases and one probe of the peaks (None), in a seeded random order."""
        order: list[Case | None] = [*cases, None] if self._peaks else [*cases]
        random.Random(f"{self.experiment.seed} {group} {number}").shuffle(order)
        finished: list[CaseRounds] = []
        peaks: list[Peaks] = []
        for case in order:
            if case is None:
                peaks.append(Peaks.model_validate(self.housekeeping("peaks")))
                continue
            if self.lost_in(case):
                continue
            self._announce(f"{self.survey[case.implementation].label}: round {number + 1}")
            reply = self.round(case, self.steps, 1 + number + 1000 * group)
            if reply is not None:
                self.rounds_of[case.key].add(reply, group)
                finished.append(self.rounds_of[case.key])
        for rounds in finished:
            rounds.peaks.extend(peaks)
