"""Drives one point in one worker: asks, checks the answers, keeps what became of each implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Case, Point
from chunkbench.experiment.terms import Mode
from chunkbench.measure.rotation import Rotation, calls_of, rotation, runs_of
from chunkbench.runner.case_facts import CaseRounds, ImplementationState
from chunkbench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.runner.session_work import SessionWork
from chunkbench.runner.survey import Traits
from chunkbench.store.facts import Status

BEFORE, AFTER = 1 << 20, 1 << 21
"""First nonces of the checks before and after the rounds; those of rounds are small."""
_HOUSEKEEPING_S = 300.0
"""Limit of requests that run no implementation."""


class Culprit(Exception):
    """The worker is gone; `implementation` is whose request was outstanding, None when it was the harness's own."""

    def __init__(self, implementation: str | None, status: Status, reason: str, mode: Mode | None = None) -> None:
        super().__init__(reason)
        self.implementation, self.status, self.reason = implementation, status, reason
        self.mode: Mode | None = mode
        """The only mode of it that is to blame; None: all of them."""


class PointDriver:
    """A point in one worker: `states` by implementation, `rounds_of` by case key."""

    def __init__(
        self,
        experiment: TimedExperiment,
        work: SessionWork,
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        point: Point,
        cases: Sequence[Case],
    ) -> None:
        self.experiment, self.work, self.survey = experiment, work, survey
        self.worker, self.point = worker, point
        self.states = {case.implementation: ImplementationState() for case in cases}
        self.rounds_of = {case.key: CaseRounds() for case in cases}
        self.cases = cases
        self.rotations = dict.fromkeys(self.states, Rotation(1, False))
        """Of cold caches on a GPU, by implementation."""
        self.steps: tuple[int, ...] = ()
        self.threads: int | None = None

    def usable(self, name: str) -> bool:
        """Whether an implementation can run here and computes this point; otherwise its state says why not."""
        state, traits = self.states[name], self.survey[name]
        if state.failed:
            return False
        if not traits.ok:
            state.fail(traits.status, traits.refusal())
            return False
        reply = self.ask(name, "supports")
        if reply is not None and not reply["ok"]:
            state.fail("unsupported", f"{reply['reason']}: {reply['remedy']}" if reply["remedy"] else reply["reason"])
        return not state.failed

    def plan_copies(self, needs: Mapping[str, int], room: int, l2_bytes: int) -> dict[str, int]:
        """How each implementation's caches will be made cold on a GPU; what its copies then need in all."""
        if any(case.cache == "cold" for case in self.cases):
            for name, need in needs.items():
                shares = self.survey[name].shares_storage
                touched = self.work.touched(self.point, self.experiment.seed, name, shares)
                self.rotations[name] = rotation(touched, l2_bytes, need, room)
            if any(known.sweep for known in self.rotations.values()):  # then for all that would rotate, to be alike
                swept = {name: Rotation(1, True) for name, known in self.rotations.items() if known.copies > 1}
                self.rotations |= swept
        return {name: need * self.rotations[name].copies for name, need in needs.items()}

    def prepare(self, name: str, needs: int) -> bool:
        """Build the sessions of an implementation; whether that went well."""
        more = {"copies": self.rotations[name].copies} if self.point.device == "cuda" else {}
        return self.ask(name, "prepare", needs=needs, **more) is not None

    def round(self, case: Case, steps: Sequence[int], nonce: int) -> dict[str, Any] | None:
        """One round of a case; None when it failed."""
        cold = case.cache == "cold"
        if self.point.device == "cpu":
            warm_up = case.protocol == "paper"
            return self.ask(case.implementation, "round", timed=list(steps), nonce=nonce, cold=cold, warm_up=warm_up)
        copies, sweep = self.rotations[case.implementation] if cold else Rotation(1, False)
        request: dict[str, Any] = {"timed": list(steps), "nonce": nonce, "copies": copies, "sweep": sweep}
        reply = self.ask(case.implementation, "gpu_round", case.mode, mode=case.mode, **request)
        if reply is not None and reply["drift"] > self.experiment.tolerance[self.point.dtype]:
            reason = f"a timed call's output differs by {reply['drift']:.1e} from that of the same call made again"
            self.rounds_of[case.key].fail("incorrect", reason)
            return None
        return reply

    def sample_s(self, case: Case) -> float:
        """Seconds that a sample of a case takes, untimed calls and the capture of graphs included."""
        once = self.states[case.implementation].decode_s
        if self.point.device == "cpu":
            return once
        copies = self.appends(case)
        swept = case.cache == "cold" and self.rotations[case.implementation].sweep
        captures = calls_of(case.mode, copies) if swept else 1
        return once * runs_of(case.mode, copies) + self.rounds_of[case.key].capture_s * captures

    def appends(self, case: Case) -> int:
        """Sessions of a case that every step is appended to."""
        return self.rotations[case.implementation].copies if case.cache == "cold" else 1

    def lost_in(self, case: Case) -> bool:
        """Whether there is nothing more to measure of a case."""
        return self.states[case.implementation].failed or self.rounds_of[case.key].failed

    def fail(self, name: str, status: Status, reason: str, mode: Mode | None = None) -> None:
        """Give up on an implementation, or, where a graph failed, on its graphs alone."""
        if mode != "graph":
            self.states[name].fail(status, reason)
            return
        for timing in self._graphs(name):
            timing.fail(status, reason)

    def check(self, name: str, steps: int, nonce: int, sample: bool = False) -> None:
        """Compare one decode over `steps` completion tokens, or a sample of its rows, with float64; and the replay of
        a graph, where one is timed."""
        self._check(name, steps, nonce, sample)
        if not self.states[name].failed and any(not timing.failed for timing in self._graphs(name)):
            self._check_graph(name, steps, nonce, sample)

    def _graphs(self, name: str) -> list[CaseRounds]:
        return [self.rounds_of[case.key] for case in self.cases if case.implementation == name and case.mode == "graph"]

    def _check_graph(self, name: str, steps: int, nonce: int, sample: bool) -> None:
        reply = self.ask(name, "check", "graph", steps=steps, nonce=nonce, sample=sample, mode="graph")
        if reply is None:
            return
        error = reply["max_error"]
        wrong = self._wrong(error, steps)
        if wrong:
            self.fail(name, "incorrect", f"replayed from a graph: {wrong}", "graph")
        for timing in self._graphs(name):
            timing.capture_s = reply["once_s"]
            if not isinf(error):
                timing.max_error = max(timing.max_error or 0.0, error)

    def _wrong(self, error: float, steps: int) -> str:
        """What is wrong with an output; empty when nothing is."""
        tolerance = self.experiment.tolerance[self.point.dtype]
        state = f"after {steps} completion token{'s' * (steps > 1)}"
        if isinf(error):
            return f"NaN or infinity in the output {state}"
        return "" if error <= tolerance else f"max_error {error:.1e} {state}, tolerance {tolerance:.0e}"

    def _check(self, name: str, steps: int, nonce: int, sample: bool) -> None:
        reply = self.ask(name, "check", steps=steps, nonce=nonce, sample=sample)
        if reply is None:
            return
        state = self.states[name]
        state.decode_s, state.append_s = reply["decode_s"], reply["append_s"]
        state.kv_bytes, state.visible_bytes = reply["kv_bytes"], reply["visible_bytes"]
        state.work_items = reply["work_items"]
        error = reply["max_error"]
        wrong = self._wrong(error, steps)
        if wrong:
            state.fail("incorrect", wrong)
        if not isinf(error):
            state.max_error = max(state.max_error or 0.0, error)

    def check_bytes(self, name: str) -> None:
        """Compare the K/V bytes that an implementation states with what it can be seen to hold, and must hold."""
        state, point = self.states[name], self.point
        if state.failed or state.kv_bytes is None or not self.work.keeps_kv:
            return
        distinct = point.unique_prompt_tokens(self.experiment.seed) + point.n_c * point.batch_size
        if state.kv_bytes < distinct * point.token_bytes:
            state.fail("error", f"states {state.kv_bytes} bytes of K/V, {distinct} distinct tokens need more")
        elif 0 < state.visible_bytes < state.kv_bytes:
            state.fail("error", f"states {state.kv_bytes} bytes of K/V but holds {state.visible_bytes}")

    def ask(self, name: str, op: str, mode_: Mode | None = None, /, **arguments: Any) -> dict[str, Any] | None:
        """Ask something that runs an implementation, in one mode only if that is given; None when it failed, which its
        state, or its graphs' timings, then say."""
        mode: Mode | None = "graph" if mode_ == "graph" else None
        limit = self.experiment.case_limit_s
        try:
            return self.worker.ask(op, limit, implementation=name, **arguments)
        except WorkerError as error:
            if error.kind == "lost":
                raise Culprit(name, "crashed", f"in {op}: {error}", mode) from None
            statuses: Mapping[str, Status] = {"oom": "oom", "unsupported": "unsupported"}
            said = str(error) if error.kind == "unsupported" else f"in {op}: {error}"
            self.fail(name, statuses.get(error.kind, "error"), said, mode)
            return None
        except WorkerCrashed as crash:
            raise Culprit(name, "crashed", f"in {op}: {crash}", mode) from None
        except WorkerTimeout as timeout:
            raise Culprit(name, "timeout", f"in {op}: {timeout}", mode) from None

    def housekeeping(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask something that is the harness's own business."""
        try:
            return self.worker.ask(op, _HOUSEKEEPING_S, **arguments)
        except WorkerError as error:
            raise Culprit(None, "oom" if error.kind == "oom" else "error", f"harness, {op}: {error}") from None
        except WorkerCrashed as crash:
            raise Culprit(None, "crashed", f"harness, {op}: {crash}") from None
        except WorkerTimeout as timeout:
            raise Culprit(None, "timeout", f"harness, {op}: {timeout}") from None
