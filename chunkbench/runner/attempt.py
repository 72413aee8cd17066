"""One attempt at a point: prepare, check, interleaved rounds, check again; one memory group at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import inf, isinf
from time import monotonic
from typing import Any

from chunkbench.analysis.statistics import MIN_TIMED_STEPS, enough, timed_steps
from chunkbench.environment import available_memory
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner import memory
from chunkbench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.runner.ledger import Entry, Timing, Traits
from chunkbench.store.facts import Peaks, Status

_HOUSEKEEPING_S = 300.0
"""Limit of requests that run no implementation."""
_BEFORE, _AFTER = 1 << 20, 1 << 21
"""First nonces of the checks; those of rounds are small."""


class Culprit(Exception):
    """The worker is gone; `implementation` is whose request was outstanding, None when it was the harness's own."""

    def __init__(self, implementation: str | None, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.implementation, self.status, self.reason = implementation, status, reason


class Attempt:
    """Measures the cases of a point into `entries` (by implementation) and `timings` (by case key).

    `announce` is told what is being done, `advance` which share of the point is done (0 to 1).
    """

    def __init__(
        self,
        experiment: Experiment,
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        point: Point,
        cases: Sequence[Case],
        announce: Callable[[str], None],
        advance: Callable[[float], None],
    ) -> None:
        self._experiment, self._survey, self._worker = experiment, survey, worker
        self._point, self._cases = point, cases
        self._announce, self._advance = announce, advance
        self.entries = {case.implementation: Entry() for case in cases}
        self.timings = {case.key: Timing() for case in cases}
        self.steps: tuple[int, ...] = ()
        self.threads: int | None = None

    def run(self, deadline: float) -> None:
        """Measure until about `deadline` (monotonic seconds). Raises `Culprit` when the worker is lost."""
        self._announce("making inputs")
        seed = self._experiment.seed
        # What the worker holds of the last point it gives to this one.
        room = memory.room_of(available_memory() + self._worker.resident_bytes)
        probe = memory.probe_bytes(room)
        point = self._point.model_dump(mode="json")
        self.threads = self._housekeeping("open", point=point, seed=seed, probe_bytes=probe)["threads"]
        usable = [name for name in self.entries if self._usable(name)]
        needs = memory.needs(self._point, seed, {name: self._survey[name].shares_storage for name in usable})
        grouping = memory.group(needs, usable, self._experiment.baseline, room - probe)
        for name, reason in grouping.too_large.items():
            self.entries[name].fail("oom", f"predicted: {reason}")
        for index, names in enumerate(grouping.groups):
            self._measure_group(index, names, grouping.groups, needs, deadline)
            for name in names:
                if name != self._experiment.baseline or index == len(grouping.groups) - 1:
                    self._housekeeping("release", implementation=name)

    def _usable(self, name: str) -> bool:
        """Whether an implementation can run here and computes this point; otherwise its entry says why not."""
        entry, traits = self.entries[name], self._survey[name]
        if entry.failed:
            return False
        if not traits.ok:
            entry.fail(traits.status, traits.refusal())
            return False
        reply = self._ask(name, "supports")
        if reply is not None and not reply["ok"]:
            entry.fail("unsupported", f"{reply['reason']}: {reply['remedy']}" if reply["remedy"] else reply["reason"])
        return not entry.failed

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
            if index and name == self._experiment.baseline:
                continue  # it stays prepared from the first group on
            self._announce(f"{self._survey[name].label}: preparing and checking")
            if self._ask(name, "prepare", needs=needs[name]) is not None:
                self._check(name, 1, _BEFORE + index)
        cases = self._alive([case for case in self._cases if case.implementation in names])
        if not cases:
            return
        time_left = max(0.0, deadline - monotonic())
        if not self.steps:
            crowd = sum(map(len, groups)) / len(names)
            self.steps = self._choose_steps(cases, crowd, time_left)
        self._refuse_long(cases)
        self._rounds(self._alive(cases), index, len(groups), monotonic() + time_left / (len(groups) - index))
        for name in names:
            if not self.entries[name].failed:
                self._announce(f"{self._survey[name].label}: checking again")
                self._check(name, self._point.n_c, _AFTER + index)
                self._check_bytes(name)

    def _choose_steps(self, cases: Sequence[Case], crowd: float, time_left: float) -> tuple[int, ...]:
        """Time every step if the fewest rounds then fit the time, otherwise as many evenly spread ones as do.

        `crowd` is how many times more the whole point has to run than this group.
        """
        n_c = self._point.n_c
        decodes = crowd * sum(self.entries[case.implementation].decode_s for case in cases)
        appends = crowd * sum(self.entries[case.implementation].append_s for case in cases) * n_c
        affordable = (time_left / self._least_rounds(cases) - appends) / decodes if decodes > 0 else inf
        return timed_steps(n_c, int(min(n_c, max(MIN_TIMED_STEPS, affordable))))

    def _least_rounds(self, cases: Sequence[Case]) -> int:
        return self._experiment.min_rounds if any(case.protocol == "strict" for case in cases) else 1

    def _refuse_long(self, cases: Sequence[Case]) -> None:
        """Give up beforehand on a case that would overrun its limit."""
        limit = self._experiment.case_limit_s
        for case in cases:
            calls = len(self.steps) * self._least_rounds([case])
            one = self.entries[case.implementation].decode_s
            if one * calls > limit:
                reason = f"predicted: one call took {one:.1f} s, {calls} calls overrun the limit of {limit:.0f} s"
                self.entries[case.implementation].fail("timeout", reason)

    def _rounds(self, cases: Sequence[Case], group: int, groups: int, deadline: float) -> None:
        """Interleaved rounds until the intervals are narrow or the time is used up, never fewer than the least."""
        experiment = self._experiment
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
        order: list[Case | None] = [*cases, None]
        random.Random(f"{self._experiment.seed} {group} {number}").shuffle(order)
        finished: list[Timing] = []
        peaks: list[Peaks] = []
        for case in order:
            if case is None:
                peaks.append(Peaks.model_validate(self._housekeeping("peaks")))
                continue
            name = case.implementation
            if self.entries[name].failed:
                continue
            self._announce(f"{self._survey[name].label}: round {number + 1}")
            reply = self._ask(
                name,
                "round",
                timed=list(self.steps),
                nonce=1 + number + 1000 * group,
                cold=case.cache == "cold",
                warm_up=case.protocol == "paper",
            )
            if reply is not None:
                self.timings[case.key].add(reply, group)
                finished.append(self.timings[case.key])
        for timing in finished:
            timing.peaks.extend(peaks)

    def _check(self, name: str, steps: int, nonce: int) -> None:
        """Compare one decode over `steps` completion tokens with float64."""
        reply = self._ask(name, "check", steps=steps, nonce=nonce)
        if reply is None:
            return
        entry = self.entries[name]
        entry.decode_s, entry.append_s = reply["decode_s"], reply["append_s"]
        entry.kv_bytes, entry.visible_bytes = reply["kv_bytes"], reply["visible_bytes"]
        entry.work_items = reply["work_items"]
        error, tolerance = reply["max_error"], self._experiment.tolerance[self._point.dtype]
        state = f"after {steps} completion token{'s' * (steps > 1)}"
        if isinf(error):
            entry.fail("incorrect", f"NaN or infinity in the output {state}")
            return
        entry.max_error = max(entry.max_error or 0.0, error)
        if not error <= tolerance:
            entry.fail("incorrect", f"max_error {error:.1e} {state}, tolerance {tolerance:.0e}")

    def _check_bytes(self, name: str) -> None:
        """Compare the K/V bytes that an implementation states with what it can be seen to hold, and must hold."""
        entry, point = self.entries[name], self._point
        if entry.failed or entry.kv_bytes is None:
            return
        distinct = point.unique_prompt_tokens(self._experiment.seed) + point.n_c * point.batch_size
        if entry.kv_bytes < distinct * point.token_bytes:
            entry.fail("error", f"states {entry.kv_bytes} bytes of K/V, {distinct} distinct tokens need more")
        elif 0 < entry.visible_bytes < entry.kv_bytes:
            entry.fail("error", f"states {entry.kv_bytes} bytes of K/V but holds {entry.visible_bytes}")

    def _alive(self, cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if not self.entries[case.implementation].failed]

    def _ask(self, name: str, op: str, **arguments: Any) -> dict[str, Any] | None:
        """Ask something that runs an implementation; None when it failed, which its entry then says."""
        limit = self._experiment.case_limit_s
        try:
            return self._worker.ask(op, limit, implementation=name, **arguments)
        except WorkerError as error:
            status: Status = "oom" if error.kind == "oom" else "error"
            self.entries[name].fail(status, f"in {op}: {error}")
            return None
        except WorkerCrashed as crash:
            raise Culprit(name, "crashed", f"in {op}: {crash}") from None
        except WorkerTimeout as timeout:
            raise Culprit(name, "timeout", f"in {op}: {timeout}") from None

    def _housekeeping(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask something that is the harness's own business."""
        try:
            return self._worker.ask(op, _HOUSEKEEPING_S, **arguments)
        except WorkerError as error:
            raise Culprit(None, "oom" if error.kind == "oom" else "error", f"harness, {op}: {error}") from None
        except WorkerCrashed as crash:
            raise Culprit(None, "crashed", f"harness, {op}: {crash}") from None
        except WorkerTimeout as timeout:
            raise Culprit(None, "timeout", f"harness, {op}: {timeout}") from None
