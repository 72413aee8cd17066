"""One worker's end of measuring a point: asking, checking, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any

from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.runner.ledger import Entry, Timing, Traits
from chunkbench.store.facts import Status

BEFORE, AFTER = 1 << 20, 1 << 21
"""First nonces of the checks before and after the rounds; those of rounds are small."""
_HOUSEKEEPING_S = 300.0
"""Limit of requests that run no implementation."""


class Culprit(Exception):
    """The worker is gone; `implementation` is whose request was outstanding, None when it was the harness's own."""

    def __init__(self, implementation: str | None, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.implementation, self.status, self.reason = implementation, status, reason


class Bench:
    """A point in one worker: its `entries` by implementation and `timings` by case key."""

    def __init__(
        self,
        experiment: Experiment,
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        point: Point,
        cases: Sequence[Case],
    ) -> None:
        self.experiment, self.survey, self.worker, self.point = experiment, survey, worker, point
        self.entries = {case.implementation: Entry() for case in cases}
        self.timings = {case.key: Timing() for case in cases}
        self.steps: tuple[int, ...] = ()
        self.threads: int | None = None

    def usable(self, name: str) -> bool:
        """Whether an implementation can run here and computes this point; otherwise its entry says why not."""
        entry, traits = self.entries[name], self.survey[name]
        if entry.failed:
            return False
        if not traits.ok:
            entry.fail(traits.status, traits.refusal())
            return False
        reply = self.ask(name, "supports")
        if reply is not None and not reply["ok"]:
            entry.fail("unsupported", f"{reply['reason']}: {reply['remedy']}" if reply["remedy"] else reply["reason"])
        return not entry.failed

    def check(self, name: str, steps: int, nonce: int, sample: bool = False) -> None:
        """Compare one decode over `steps` completion tokens, or a sample of its rows, with float64."""
        reply = self.ask(name, "check", steps=steps, nonce=nonce, sample=sample)
        if reply is None:
            return
        entry = self.entries[name]
        entry.decode_s, entry.append_s = reply["decode_s"], reply["append_s"]
        entry.kv_bytes, entry.visible_bytes = reply["kv_bytes"], reply["visible_bytes"]
        entry.work_items = reply["work_items"]
        error, tolerance = reply["max_error"], self.experiment.tolerance[self.point.dtype]
        state = f"after {steps} completion token{'s' * (steps > 1)}"
        if isinf(error):
            entry.fail("incorrect", f"NaN or infinity in the output {state}")
            return
        entry.max_error = max(entry.max_error or 0.0, error)
        if not error <= tolerance:
            entry.fail("incorrect", f"max_error {error:.1e} {state}, tolerance {tolerance:.0e}")

    def check_bytes(self, name: str) -> None:
        """Compare the K/V bytes that an implementation states with what it can be seen to hold, and must hold."""
        entry, point = self.entries[name], self.point
        if entry.failed or entry.kv_bytes is None or point.model is not None:
            return
        distinct = point.unique_prompt_tokens(self.experiment.seed) + point.n_c * point.batch_size
        if entry.kv_bytes < distinct * point.token_bytes:
            entry.fail("error", f"states {entry.kv_bytes} bytes of K/V, {distinct} distinct tokens need more")
        elif 0 < entry.visible_bytes < entry.kv_bytes:
            entry.fail("error", f"states {entry.kv_bytes} bytes of K/V but holds {entry.visible_bytes}")

    def ask(self, name: str, op: str, **arguments: Any) -> dict[str, Any] | None:
        """Ask something that runs an implementation; None when it failed, which its entry then says."""
        limit = self.experiment.case_limit_s
        try:
            return self.worker.ask(op, limit, implementation=name, **arguments)
        except WorkerError as error:
            status: Status = "oom" if error.kind == "oom" else "error"
            self.entries[name].fail(status, f"in {op}: {error}")
            return None
        except WorkerCrashed as crash:
            raise Culprit(name, "crashed", f"in {op}: {crash}") from None
        except WorkerTimeout as timeout:
            raise Culprit(name, "timeout", f"in {op}: {timeout}") from None

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
