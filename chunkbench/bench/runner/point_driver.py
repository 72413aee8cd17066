"""Drives one point in one worker: sends requests, checks the replies, records the state of each implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from chunkbench.bench.experiment import SessionExperiment
from chunkbench.bench.experiment.point import Case, SessionPoint
from chunkbench.bench.experiment.terms import Mode
from chunkbench.bench.measure.gpu_loop import Rotation, calls_of, rotation, runs_of
from chunkbench.bench.runner.case_facts import CaseRounds, ImplementationState
from chunkbench.bench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.bench.runner.survey import Traits
from chunkbench.bench.store.results import Status

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import AnySessions


ExperimentT = TypeVar("ExperimentT", bound=SessionExperiment, default=SessionExperiment)
BEFORE, AFTER = 1 << 20, 1 << 21
"""Smallest nonces of the checks before the rounds, and of the checks after the rounds. A nonce is a part of the seed of
random queries. Rounds have smaller nonces than checks."""
_HOUSEKEEPING_S = 300.0
"""Time limit, in seconds, of requests that run no implementation."""
_REPEATS = 3
"""How often a timed request is sent again if the worker was suspended while it answered."""


class WorkerLost(Exception):
    """The worker died during a request.

    `implementation`: the one that ran, or None if the request ran no implementation.
    """

    def __init__(self, implementation: str | None, status: Status, reason: str, mode: Mode | None = None) -> None:
        super().__init__(reason)
        self.implementation, self.status, self.reason = implementation, status, reason
        self.mode: Mode | None = mode
        """The mode (eager, events, graph) that failed; None if the whole implementation failed."""


class PointDriver(Generic[ExperimentT]):
    """Drives one point in one worker.

    `states`: implementation -> its state. `rounds_of`: case key -> rounds of the case.
    """

    def __init__(
        self,
        experiment: ExperimentT,
        work: AnySessions,
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        point: SessionPoint,
        cases: Sequence[Case],
    ) -> None:
        self.experiment, self.work, self.survey = experiment, work, survey
        self.worker, self.point = worker, point
        self.states = {case.implementation: ImplementationState() for case in cases}
        self.rounds_of = {case.key: CaseRounds() for case in cases}
        self.cases = cases
        self.rotations = dict.fromkeys(self.states, Rotation(1, False))
        """Implementation -> how its caches are made cold on a GPU."""
        self.steps: tuple[int, ...] = ()
        self.threads: int | None = None

    def usable(self, name: str) -> bool:
        """Whether an implementation can run here and supports this point. If not, the state of the implementation says
        why."""
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
        """Choose how each implementation finds cold caches on a GPU: with several copies of its session, or with a
        sweep. Returns implementation -> bytes of all its copies together."""
        if any(case.cache == "cold" for case in self.cases):
            for name, need in needs.items():
                shares = self.survey[name].shares_storage
                touched = self.work.touched(self.point, self.experiment.seed, name, shares)
                # Half of the room, so that the baseline's copies fit beside those of each other implementation.
                self.rotations[name] = rotation(touched, l2_bytes, need, room // 2)
            if any(chosen.sweep for chosen in self.rotations.values()):  # then none uses copies
                swept = {name: Rotation(1, True) for name, chosen in self.rotations.items() if chosen.copies > 1}
                self.rotations |= swept
        return {name: need * self.rotations[name].copies for name, need in needs.items()}

    def prepare(self, name: str, needs: int) -> bool:
        """Build the sessions of an implementation. Returns whether that succeeded."""
        copies = {"copies": self.rotations[name].copies} if self.point.device == "cuda" else {}
        return self.ask(name, "prepare", needs=needs, **copies) is not None

    def round(self, case: Case, steps: Sequence[int], nonce: int) -> dict[str, Any] | None:
        """Run one round of a case. Returns the worker's reply, or None if the case failed."""
        cold = case.cache == "cold"
        if self.point.device == "cpu":
            warm_up = case.protocol == "paper"
            return self.ask(case.implementation, "round", timed=list(steps), nonce=nonce, cold=cold, warm_up=warm_up)
        copies, sweep = self.rotations[case.implementation] if cold else Rotation(1, False)
        request: dict[str, Any] = {"timed": list(steps), "nonce": nonce, "copies": copies, "sweep": sweep}
        reply = self.ask(case.implementation, "gpu_round", case.mode, mode=case.mode, **request)
        if reply is not None and reply["drift"] > self.experiment.tolerance[self.point.dtype]:
            reason = f"the output of a timed call differs by {reply['drift']:.1e} from that of the same call repeated"
            self.rounds_of[case.key].fail("incorrect", reason)
            return None
        return reply

    def sample_s(self, case: Case) -> float:
        """Seconds that a sample of a case takes, including untimed calls and graph captures."""
        call_s = self.states[case.implementation].decode_s
        if self.point.device == "cpu":
            return call_s
        copies = self.appends(case)
        swept = case.cache == "cold" and self.rotations[case.implementation].sweep
        captures = calls_of(case.mode, copies) if swept else 1
        return call_s * runs_of(case.mode, copies) + self.rounds_of[case.key].capture_s * captures

    def appends(self, case: Case) -> int:
        """How often a round of a case appends each step: once for each copy of the session."""
        return self.rotations[case.implementation].copies if case.cache == "cold" else 1

    def lost_in(self, case: Case) -> bool:
        """Whether a case or its implementation has failed."""
        return self.states[case.implementation].failed or self.rounds_of[case.key].failed

    def fail(self, name: str, status: Status, reason: str, mode: Mode | None = None) -> None:
        """Mark an implementation as failed. If `mode` is graph, only its graph cases fail."""
        if mode != "graph":
            self.states[name].fail(status, reason)
            return
        for rounds in self._graphs(name):
            rounds.fail(status, reason)

    def check(self, name: str, steps: int, nonce: int, sample: bool = False) -> None:
        """Compare one decode after `steps` completion tokens with float64.

        With `sample`, only some rows are compared. If graphs are timed, the output of a graph is compared too.
        """
        self._check(name, steps, nonce, sample)
        if not self.states[name].failed and any(not rounds.failed for rounds in self._graphs(name)):
            self._check_graph(name, steps, nonce, sample)

    def _graphs(self, name: str) -> list[CaseRounds]:
        return [self.rounds_of[case.key] for case in self.cases if case.implementation == name and case.mode == "graph"]

    def _check_graph(self, name: str, steps: int, nonce: int, sample: bool) -> None:
        reply = self.ask(name, "check", "graph", steps=steps, nonce=nonce, sample=sample, mode="graph")
        if reply is None:
            return
        error = reply["max_error"]
        reason = self._incorrect_because(error, steps)
        if reason:
            self.fail(name, "incorrect", f"replayed from a graph: {reason}", "graph")
        for rounds in self._graphs(name):
            rounds.capture_s = reply["once_s"]
            if not isinf(error):
                rounds.max_error = max(rounds.max_error or 0.0, error)

    def _incorrect_because(self, error: float, steps: int) -> str:
        """The reason why an output is incorrect; empty if it is correct."""
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
        state.huge_share = reply.get("huge_share")
        state.work_items = reply["work_items"]
        error = reply["max_error"]
        reason = self._incorrect_because(error, steps)
        if reason:
            state.fail("incorrect", reason)
        if not isinf(error):
            state.max_error = max(state.max_error or 0.0, error)
        state.deviation = reply.get("deviation")

    def check_bytes(self, name: str) -> None:
        """Fail an implementation that reports fewer K/V bytes than the least possible, or more than its visible tensors
        hold."""
        state = self.states[name]
        least = self.work.least_kv_bytes(self.point, self.experiment.seed, name)
        if state.failed or state.kv_bytes is None or not least:
            return
        if state.kv_bytes < least:
            state.fail("error", f"states {state.kv_bytes} bytes of K/V, the distinct tokens need {least}")
        elif 0 < state.visible_bytes < state.kv_bytes:
            state.fail("error", f"states {state.kv_bytes} bytes of K/V but holds {state.visible_bytes}")

    def ask(self, name: str, op: str, mode_: Mode | None = None, /, **arguments: Any) -> dict[str, Any] | None:
        """Send a request that runs an implementation. Returns the reply, or None after a failure.

        A failure is recorded for the implementation. If `mode_` is graph, it is recorded only for the graph cases.
        """
        mode: Mode | None = "graph" if mode_ == "graph" else None
        limit = self.experiment.case_limit_s
        try:
            return self._answer(op, limit, implementation=name, **arguments)
        except WorkerError as error:
            if error.kind == "lost":
                raise WorkerLost(name, "crashed", f"in {op}: {error}", mode) from None
            statuses: Mapping[str, Status] = {"oom": "oom", "unsupported": "unsupported"}
            reason = str(error) if error.kind == "unsupported" else f"in {op}: {error}"
            self.fail(name, statuses.get(error.kind, "error"), reason, mode)
            return None
        except WorkerCrashed as crash:
            raise WorkerLost(name, crash.status, f"in {op}: {crash}", mode) from None
        except WorkerTimeout as timeout:
            raise WorkerLost(name, "timeout", f"in {op}: {timeout}", mode) from None

    def _answer(self, op: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """The worker's reply. Times taken across a suspension are discarded and taken again. Raises as `ask` does."""
        discarded = 0
        for _ in range(1 + _REPEATS):
            reply = self.worker.ask(op, limit_s, **arguments)
            if not reply.pop("suspended", False):
                if discarded:
                    reply["discarded"] = reply.get("discarded", 0) + discarded
                return reply
            discarded += len(reply.get("samples_us", ()))
        raise WorkerError("error", f"the worker was suspended {1 + _REPEATS} times in a row")

    def housekeeping(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a request of the harness itself, which runs no implementation."""
        try:
            return self._answer(op, _HOUSEKEEPING_S, **arguments)
        except WorkerError as error:
            raise WorkerLost(None, "oom" if error.kind == "oom" else "error", f"harness, {op}: {error}") from None
        except WorkerCrashed as crash:
            raise WorkerLost(None, crash.status, f"harness, {op}: {crash}") from None
        except WorkerTimeout as timeout:
            raise WorkerLost(None, "timeout", f"harness, {op}: {timeout}") from None
