"""One attempt at a point: prepare, check, interleaved rounds, check again; one memory group at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic

from chunkbench.analysis.statistics import MIN_TIMED_STEPS, enough, timed_steps
from chunkbench.environment import available_memory
from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner import memory_guard
from chunkbench.runner.case_facts import CaseRounds
from chunkbench.runner.client import WorkerClient
from chunkbench.runner.point_driver import AFTER, BEFORE, PointDriver
from chunkbench.runner.session_work import SessionWork
from chunkbench.runner.survey import Traits
from chunkbench.store.facts import Peaks


class Attempt(PointDriver):
    """Prepares and checks the implementations of a point, one by one; nothing is timed.

    `lengths` are its n_c and any smaller ones that its steps shall serve as well; `steps_of` tells which do.
    `announce` is told what is being done, `advance` which share of the point is done (0 to 1). `peaks`: whether the
    machine's peaks are probed inside every round.
    """

    sampled_checks = True
    """Whether a sample of an output's rows is enough for a check."""

    def __init__(
        self,
        experiment: TimedExperiment,
        work: SessionWork,
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        point: Point,
        cases: Sequence[Case],
        lengths: Sequence[int],
        announce: Callable[[str], None],
        advance: Callable[[float], None],
        peaks: bool,
    ) -> None:
        super().__init__(experiment, work, survey, worker, point, cases)
        self.steps_of: dict[int, tuple[int, ...]] = dict.fromkeys(lengths, ())
        self._announce, self._advance, self._peaks = announce, advance, peaks

    def run(self, deadline: float) -> None:
        """Measure until about `deadline` (monotonic seconds). Raises `Culprit` when the worker is lost."""
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
            self._measure_group(index, names, grouping.groups, needs, deadline)
            later = {name for group in grouping.groups[index + 1 :] for name in group}
            for name in names:
                if name not in later:
                    self.housekeeping("release", implementation=name)

    def group(self, needs: Mapping[str, int], usable: Sequence[str], room: int) -> memory_guard.Grouping:
        """Which implementations are held side by side: here, none."""
        return memory_guard.one_by_one(needs, usable, room)

    def measure(
        self, cases: Sequence[Case], index: int, groups: Sequence[Sequence[str]], names: Sequence[str], deadline: float
    ) -> None:
        """Measure the cases of the memory group of this index, whose implementations are ready: here, nothing."""

    def _room(self) -> tuple[int, int]:
        """Bytes for K and V where the point is measured, and of a GPU's L2 cache."""
        if self.point.device == "cuda":
            found = self.housekeeping("room")
            return memory_guard.room_of(found["free_bytes"]), found["l2_bytes"]
        # What the worker holds of the last point it gives to this one.
        return memory_guard.room_of(available_memory() + self.worker.resident_bytes), 0

    def _measure_group(
        self,
        index: int,
        names: Sequence[str],
        groups: Sequence[Sequence[str]],
        needs: Mapping[str, int],
        deadline: float,
    ) -> None:
        """Measure the implementations of one memory group side by side."""
        earlier = {name for group in groups[:index] for name in group}
        for name in names:
            if name in earlier:
                continue  # the baseline stays prepared from the first group on
            self._announce(f"{self.survey[name].label}: preparing and checking")
            if self.prepare(name, needs[name]):
                self.check(name, 1, BEFORE + index, sample=self.sampled_checks)
        cases = self._alive([case for case in self.cases if case.implementation in names])
        if cases:
            self.measure(cases, index, groups, names, deadline)
        for name in names:
            if not self.states[name].failed:
                self._announce(f"{self.survey[name].label}: checking again")
                self.check(name, self.point.n_c, AFTER + index, sample=self.sampled_checks)
                self.check_bytes(name)

    def _alive(self, cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if not self.lost_in(case)]


class TimedAttempt(Attempt):
    """Measures the cases of a point in interleaved rounds, between the checks."""

    sampled_checks = False

    def group(self, needs: Mapping[str, int], usable: Sequence[str], room: int) -> memory_guard.Grouping:
        """As many implementations side by side as fit, the baseline among them."""
        return memory_guard.group(needs, usable, self.experiment.baseline, room)

    def measure(
        self, cases: Sequence[Case], index: int, groups: Sequence[Sequence[str]], names: Sequence[str], deadline: float
    ) -> None:
        """Rounds of the group's share of the time."""
        time_left = max(0.0, deadline - monotonic())
        if not self.steps:
            crowd = sum(map(len, groups)) / len(names)
            self._choose_steps(cases, crowd, time_left)
        self._refuse_long(cases)
        self._rounds(self._alive(cases), index, len(groups), monotonic() + time_left / (len(groups) - index))

    def _choose_steps(self, cases: Sequence[Case], crowd: float, time_left: float) -> None:
        """Time every step if the fewest rounds then fit the time, otherwise as many evenly spread ones as do.

        `crowd` is how many times more the whole point has to run than this group.
        """
        n_c = self.point.n_c
        decodes = crowd * sum(self.sample_s(case) for case in cases)
        appends = crowd * sum(self.states[case.implementation].append_s * self.appends(case) for case in cases) * n_c
        affordable = (time_left / self._least_rounds(cases) - appends) / decodes if decodes > 0 else inf
        if affordable < n_c:  # each n_c then has steps of its own, evenly spread, and the pass all of them
            affordable = max(MIN_TIMED_STEPS, affordable / len(self.steps_of))
        self.steps_of = {length: timed_steps(length, int(min(length, affordable))) for length in self.steps_of}
        self.steps = tuple(sorted({step for steps in self.steps_of.values() for step in steps}))

    def _least_rounds(self, cases: Sequence[Case]) -> int:
        return self.experiment.min_rounds if any(case.protocol == "strict" for case in cases) else 1

    def _refuse_long(self, cases: Sequence[Case]) -> None:
        """Give up beforehand on a case that would overrun its limit."""
        limit = self.experiment.case_limit_s
        for case in cases:
            calls = len(self.steps) * self._least_rounds([case])
            one = self.sample_s(case)
            if one * calls > limit:
                reason = f"predicted: one call took {one:.1f} s, {calls} calls overrun the limit of {limit:.0f} s"
                where = self.states[case.implementation] if self.point.device == "cpu" else self.rounds_of[case.key]
                where.fail("timeout", reason)

    def _rounds(self, cases: Sequence[Case], group: int, groups: int, deadline: float) -> None:
        """Interleaved rounds until the intervals are narrow or the time is used up, never fewer than the least."""
        experiment = self.experiment
        started = monotonic()
        done = 0
        while cases:
            strict = [case for case in cases if case.protocol == "strict"]
            if done and not strict:
                return  # the paper's protocol is one round
            if strict and done >= experiment.min_rounds:
                means = [self.rounds_of[case.key].means(group) for case in strict]
                narrow = enough(means, experiment.min_rounds, experiment.precision, experiment.confidence)
                per_round = (monotonic() - started) / done
                if narrow or done >= experiment.max_rounds or monotonic() + per_round > deadline:
                    return
            self._round(strict if done else cases, group, done)
            done += 1
            cases = self._alive(cases)
            by_rounds = done / self._least_rounds(cases)
            by_time = (monotonic() - started) / max(1e-9, deadline - started)
            self._advance((group + min(1.0, by_rounds, max(by_time, by_rounds / 2))) / groups)

    def _round(self, cases: Sequence[Case], group: int, number: int) -> None:
        """One pass over all cases, in an order of its own, with the machine's peaks probed somewhere in between."""
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
        for timing in finished:
            timing.peaks.extend(peaks)
