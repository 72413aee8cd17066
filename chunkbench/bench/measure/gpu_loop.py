"""Cold L2 by rotation: how many copies of a session take turns, and how many calls form a sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import torch

from chunkbench.bench.contract import Session
from chunkbench.bench.experiment.terms import Mode
from chunkbench.bench.measure.clocks import ClockGuard
from chunkbench.bench.measure.loop import Feed, Round, no_collections

L2_FACTOR = 5
"""All copies together hold more than this many times the size of the L2 cache."""
MOST_COPIES = 32
"""Largest number of copies. With more copies, appends would take longer than the measurement; then a sweep clears the
cache."""
FEWEST_CALLS = 8
"""Smallest number of calls between the two CUDA events of a sample: events have a resolution of half a microsecond, and
a kernel may take only ten microseconds."""


class Rotation(NamedTuple):
    """How many copies of a session an implementation needs for its cold cases."""

    copies: int
    sweep: bool
    """Whether a sweep must clear the cache before each call, because the copies do not fill it."""


def rotation(touched: int, l2_bytes: int, need: int, room: int) -> Rotation:
    """How to make caches cold for a session that reads `touched` distinct bytes of K and V and needs `need` bytes.

    It chooses the smallest number of copies that together read more than five times the size of the L2 cache; a large
    session needs only one. If that many copies do not fit into `room` bytes, or exceed `MOST_COPIES`, it chooses one
    copy and a sweep.
    """
    wanted = math.ceil((L2_FACTOR * l2_bytes + 1) / max(1, touched))
    if wanted > MOST_COPIES or wanted * need > max(room, need):
        return Rotation(1, True)
    return Rotation(wanted, False)


def calls_of(mode: Mode, copies: int) -> int:
    """Calls in a sample: one for wall times (`eager`); otherwise at least eight, the same number on each copy."""
    return 1 if mode == "eager" else copies * math.ceil(FEWEST_CALLS / copies)


def runs_of(mode: Mode, copies: int) -> int:
    """Number of decodes for one sample, untimed decodes included: every call runs once before the sample; for a graph,
    twice."""
    if mode == "eager":
        return copies + 1
    return calls_of(mode, copies) * (3 if mode == "graph" else 2)


Call = Callable[[], None]
_LEAD, _SHORTEST_LEAD_US, _LONGEST_LEAD_US = 2.0, 100.0, 20_000.0
"""The device stalls `_LEAD` times as long as the host last needed to queue the calls, within these two limits in
microseconds."""


class CaptureError(RuntimeError):
    """An implementation's decode cannot be captured in a CUDA graph."""


class Device(Protocol):
    """A GPU and its stream."""

    def synchronise(self) -> None:
        """Wait until everything queued is done."""
        ...

    def mark(self) -> Any:
        """Queue an event."""
        ...

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Microseconds between two completed events."""
        ...

    def stall(self, us: float) -> None:
        """Queue a wait of about this length."""
        ...

    def capture(self, spans: Sequence[Sequence[Call]]) -> list[Call]:
        """One graph for each span of calls; returns the functions that replay them.

        Runs the calls once on a side stream before it captures them there. Raises `CaptureError`.
        """
        ...


@dataclass
class SampleCall:
    """One call of a sample: its session, and its own tensors, because a graph stores their addresses."""

    session: Session
    q: torch.Tensor
    out: torch.Tensor

    def call(self) -> None:
        self.session.decode(self.q, self.out)


def run_gpu_round(
    copies: Sequence[Session],
    feed: Feed,
    out: torch.Tensor,
    n_c: int,
    timed: Collection[int],
    nonce: int,
    mode: Mode,
    sweep: Call | None,
    device: Device,
    guard: ClockGuard,
) -> Round:
    """Rewind, then append and plan on every copy at every step 1..n_c, and take a sample at the timed steps.

    `out` has the shape of a call's output. `sweep` makes the cache cold before each timed call; None means that the
    rotation of the copies does so, or that the cache is warm. The times of `append` and `plan` are wall times that
    include the wait for the device, averaged over the copies.
    """
    sampler = _Sampler(copies, feed, out, nonce, mode, sweep, device)
    result, last = Round(), max(timed, default=0)
    for session in copies:
        session.rewind()
    with no_collections():
        for step in range(1, n_c + 1):
            tokens, k, v = feed.completion(step)
            device.synchronise()
            started = perf_counter_ns()
            for session in copies:
                session.append(tokens, k, v)
            device.synchronise()
            appended = perf_counter_ns()
            for session in copies:
                session.plan()
            device.synchronise()
            planned = perf_counter_ns()
            result.append_us.append((appended - started) / 1000 / len(copies))
            result.plan_us.append((planned - appended) / 1000 / len(copies))
            if step in timed:
                result.decode_us.append(guard.take(sampler.at(step)))
                if step == last:
                    result.drift = sampler.drift()
    return result


def decode_once(session: Session, q: torch.Tensor, out: torch.Tensor, mode: Mode, device: Device) -> None:
    """Decode once in this mode, for a check.

    Fills `out` with NaN first. A graph is captured with zeros as queries; only the replay sees `q`.
    """
    run = SampleCall(session, q, out).call
    if mode == "graph":
        lane = SampleCall(session, torch.zeros_like(q), out)
        (run,) = device.capture([[lane.call]])
        lane.q.copy_(q)
    out.fill_(float("nan"))
    run()
    device.synchronise()


class _Sampler:
    """Takes the samples of a round."""

    def __init__(
        self,
        copies: Sequence[Session],
        feed: Feed,
        out: torch.Tensor,
        nonce: int,
        mode: Mode,
        sweep: Call | None,
        device: Device,
    ) -> None:
        self._feed, self._nonce, self._mode, self._sweep, self._device = feed, nonce, mode, sweep, device
        self._copies = len(copies)
        q = feed.queries(nonce, 0)
        self._lanes = [
            SampleCall(copies[number % len(copies)], torch.empty_like(q), torch.empty_like(out))
            for number in range(max(len(copies), calls_of(mode, len(copies))))
        ]

    def at(self, step: int) -> Callable[[], float]:
        """A function that takes the sample of a step, in microseconds; every call of it uses new queries."""
        if self._mode == "eager":
            self._lanes.append(self._lanes.pop(0))  # the next copy
        calls = [lane.call for lane in self._lanes]
        # The calls between two events: one call if a sweep precedes each call, otherwise all calls.
        spans = [[call] for call in calls] if self._sweep is not None else [calls]
        if self._mode == "graph":
            self._refresh(step, 0)
            spans = [[replay] for replay in self._device.capture(spans)]
        tries = 0

        def take() -> float:
            nonlocal tries
            tries += 2
            self._refresh(step, tries - 1)
            queueing_us = self._run_in([call for span in spans for call in span])
            self._refresh(step, tries)
            return self._wall_us(calls[0]) if self._mode == "eager" else self._events_us(spans, queueing_us)

        return take

    def drift(self) -> float:
        """Repeats a call of the last sample outside of any graph and compares the outputs.

        Returns the largest difference over the largest value. The difference shows whether the timed calls computed
        what the check checked.
        """
        lane = self._lanes[0]
        repeated = torch.full_like(lane.out, float("nan"))
        lane.session.decode(lane.q, repeated)
        self._device.synchronise()
        drift = ((lane.out.double() - repeated.double()).abs().max() / repeated.double().abs().max()).item()
        return drift if isfinite(drift) else inf

    def _refresh(self, step: int, number: int) -> None:
        """Give every call new queries."""
        for index, lane in enumerate(self._lanes):
            lane.q.copy_(self._feed.queries(self._nonce, step, number, index))

    def _run_in(self, calls: Sequence[Call]) -> float:
        """Run every call once, untimed; returns the microseconds that the host needs to queue one call.

        Afterwards, everything that the first call of a step compiles, chooses or loads is ready. All copies have run,
        and the copy that is timed first ran the longest time ago.
        """
        started = perf_counter_ns()
        for call in calls:
            call()
        queued = perf_counter_ns()
        self._device.synchronise()
        return (queued - started) / 1000 / len(calls)

    def _wall_us(self, call: Call) -> float:
        if self._sweep is not None:
            self._sweep()
        self._device.synchronise()
        started = perf_counter_ns()
        call()
        self._device.synchronise()
        return (perf_counter_ns() - started) / 1000

    def _events_us(self, spans: Sequence[Sequence[Call]], queueing_us: float) -> float:
        """Microseconds of one call on the device; each span of calls or replays has its own pair of events.

        The device stalls until the host has queued the whole span, so it never waits for the host inside a span.
        """
        device = self._device
        marks = []
        for span in spans:
            if self._sweep is not None:
                self._sweep()
            lead_us = max(_SHORTEST_LEAD_US, _LEAD * queueing_us * len(span))
            device.stall(min(_LONGEST_LEAD_US, lead_us))
            start = device.mark()
            for call in span:
                call()
            marks.append((start, device.mark()))
        device.synchronise()
        return sum(device.elapsed_us(start, end) for start, end in marks) / len(self._lanes)
