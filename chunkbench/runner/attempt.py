"""One attempt at a point: prepare, check, interleaved rounds, check again; one memory group at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic

from chunkbench.analysis.statistics import MIN_TIMED_STEPS, enough, timed_steps
from chunkbench.environment import available_memory
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner import memory
from chunkbench.runner.bench import AFTER, BEFORE, Bench
from chunkbench.runner.client import WorkerClient
from chunkbench.runner.ledger import Timing, Traits
from chunkbench.store.facts import Peaks


class Attempt(Bench):
    """Measures the cases of a point into `entries` (by implementation) and `timings` (by case key).

    `lengths` are its n_c and any smaller ones that its steps shall serve as well; `steps_of` tells which do.
    `announce` is told what is being done, `advance` which share of the point is done (0 to 1).
    """

    def __init__(
        self,
        experiment: Experiment,
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        point: Point,
        cases: Sequence[Case],
        lengths: Sequence[int],
        announce: Callable[[str], None],
        advance: Callable[[float], None],
        peaks: bool,
    ) -> None:
        super().__init__(experiment, survey, worker, point, cases)
        self.steps_of: dict[int, tuple[int, ...]] = dict.fromkeys(lengths, ())
        self._announce, self._advance, self._peaks = announce, advance, peaks

    def run(self, deadline: float) -> None:
        """Measure until about `deadline` (monotonic seconds). Raises `Culprit` when the worker is lost."""
        self._announce("making inputs")
        seed = self.experiment.seed
        room, l2_bytes = self._room()
        probe = memory.probe_bytes(room) if self._peaks else 0
        point = self.point.as_json()
        self.threads = self.housekeeping("open", point=point, seed=seed, probe_bytes=probe)["threads"]
        usable = [name for name in self.entries if self.usable(name)]
        needs = memory.needs(self.point, seed, {name: self.survey[name].shares_storage for name in usable})
        if self.point.device == "cuda":
            needs = self.plan_copies(needs, room - probe, l2_bytes)
        baseline = self.experiment.baseline if self.experiment.timed else ""
        if self.experiment.timed:
            grouping = memory.group(needs, usable, baseline, room - probe)
        else:
            grouping = memory.one_by_one(needs, usable, room - probe)
        for name, reason in grouping.too_large.items():
            self.entries[name].fail("oom", f"predicted: {reason}")
        for index, names in enumerate(grouping.groups):
            self._measure_group(index, names, grouping.groups, needs, deadline)
            for name in names:
                if name != baseline or index == len(grouping.groups) - 1:
                    self.housekeeping("release", implementation=name)

    def _room(self) -> tuple[int, int]:
        """Bytes for K and V where the point is measured, and of a GPU's L2 cache."""
        if self.point.device == "cuda":
            found = self.housekeeping("room")
            return memory.room_of(found["free_bytes"]), found["l2_bytes"]
        # What the worker holds of the last point it gives to this one.
        return memory.room_of(available_memory() + self.worker.resident_bytes), 0

    def _measure_group(
        self,
        index: int,
        names: Sequence[str],
        groups: Sequence[Sequence[str]],
        needs: Mapping[str, int],
        deadline: float,
    ) -> None:
        """Measure the implementations of one memory group side by side."""
        for name in names:
            if index and name == groups[0][0]:
                continue  # the baseline stays prepared from the first group on
            self._announce(f"{self.survey[name].label}: preparing and checking")
            if self.prepare(name, needs[name]):
                self.check(name, 1, BEFORE + index, sample=not self.experiment.timed)
        cases = self._alive([case for case in self.cases if case.implementation in names])
        if cases and self.experiment.timed:
            time_left = max(0.0, deadline - monotonic())
            if not self.steps:
                crowd = sum(map(len, groups)) / len(names)
                self._choose_steps(cases, crowd, time_left)
            self._refuse_long(cases)
            self._rounds(self._alive(cases), index, len(groups), monotonic() + time_left / (len(groups) - index))
        for name in names:
            if not self.entries[name].failed:
                self._announce(f"{self.survey[name].label}: checking again")
                self.check(name, self.point.n_c, AFTER + index, sample=not self.experiment.timed)
                self.check_bytes(name)

    def _choose_steps(self, cases: Sequence[Case], crowd: float, time_left: float) -> None:
        """Time every step if the fewest rounds then fit the time, otherwise as many evenly spread ones as do.

        `crowd` is how many times more the whole point has to run than this group.
        """
        n_c = self.point.n_c
        decodes = crowd * sum(self.sample_s(case) for case in cases)
        appends = crowd * sum(self.entries[case.implementation].append_s * self.appends(case) for case in cases) * n_c
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
                where = self.entries[case.implementation] if self.point.device == "cpu" else self.timings[case.key]
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
                means = [self.timings[case.key].means(group) for case in strict]
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
        finished: list[Timing] = []
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
                self.timings[case.key].add(reply, group)
                finished.append(self.timings[case.key])
        for timing in finished:
            timing.peaks.extend(peaks)

    def _alive(self, cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if not self.lost_in(case)]
