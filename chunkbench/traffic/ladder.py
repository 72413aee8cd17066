"""The steps of a ladder: one load after the other, each heavier than the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chunkbench.traffic.request_result import LoadNumbers, RequestResult

KEEPS_UP = 0.9
"""An open loop is saturated if answers come at less than this share of the rate at which requests are due."""
GAINS = 1.05
"""A closed loop is saturated if more clients raise the answered requests per second by less than this factor."""


class Step(NamedTuple):
    """The load of one step. Without rate and clients, a trace says when requests are due."""

    rate: float | None = None
    """Requests per second of an open loop."""
    clients: int | None = None
    """Number of clients of a closed loop."""
    place: int = 0
    """Number of steps before this one."""

    @property
    def axis(self) -> dict[str, float]:
        """The name of the figure that differs between steps, and its value."""
        return {name: value for name, value in (("rate", self.rate), ("clients", self.clients)) if value is not None}

    def __str__(self) -> str:
        return f"{self.rate:g} requests/s" if self.rate is not None else f"clients: {self.clients or '-'}"


def saturated(step: Step, requests: Sequence[RequestResult], now: LoadNumbers, best_per_s: float) -> str:
    """Text that says why the server is saturated at this step; empty if it is not.

    `requests`: the results of the step, `now`: their figures. `best_per_s`: most requests per second of the steps
    before; 0 at the first one.
    """
    if not now.answered:
        return f"no request was answered at {step}"
    if step.clients is not None:
        if now.requests_per_s >= GAINS * best_per_s:
            return ""
        return f"saturated: with {step}, {now.requests_per_s:.3g} requests/s are answered, with fewer {best_per_s:.3g}"
    ends = sorted(request.last for request in requests if request.status == "ok" and request.last is not None)
    due_s = max(request.due for request in requests) - min(request.due for request in requests)
    answers_s = ends[-1] - ends[0]
    if due_s >= KEEPS_UP * answers_s:
        return ""
    return f"saturated: at {step} answers come at {due_s / answers_s:.0%} of the rate at which requests are due"
