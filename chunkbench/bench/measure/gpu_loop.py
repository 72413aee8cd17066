"""The timed loop on a GPU. Copies of a session take turns, so that each call finds the L2 cache cold."""

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
"""The calls of all copies together read more than this multiple of the size of the L2 cache."""
MOST_COPIES = 32
"""Largest number of copies. If more are needed, a sweep clears the cache instead, because appends to many copies take
too long."""
FEWEST_CALLS = 8
"""Smallest number of calls between the two CUDA events of a sample. Events have a resolution of half a microsecond, and
a kernel may take only ten microseconds."""


class Rotation(NamedTuple):
    """How many copies of a session an implementation needs for its cold cases."""

    copies: int
    sweep: bool
    """Whether a sweep must clear the cache before each call, because the copies do not fill it."""


def rotation(touched: int, l2_bytes: int, need: int, room: int) -> Rotation:
    """Choose how a session's cold calls find a cold cache.

    `touched`: distinct bytes of K and V that a call reads. `need`: bytes of one copy. The function chooses the fewest
    copies that together read more than `L2_FACTOR` times the size of the L2 cache. If these copies exceed `room` bytes
    or `MOST_COPIES`, it chooses one copy and a sweep.
    """
    wanted = math.ceil((L2_FACTOR * l2_bytes + 1) / max(1, touched))
    if wanted > MOST_COPIES or wanted * need > max(room, need):
        return Rotation(1, True)
    return Rotation(wanted, False)


def calls_of(mode: Mode, copies: int) -> int:
    """Number of calls in a sample. In the mode `eager`: one. In other modes: at least `FEWEST_CALLS`, with the same
    number of calls on each copy."""
    return 1 if mode == "eager" else copies * math.ceil(FEWEST_CALLS / copies)


def runs_of(mode: Mode, copies: int) -> int:
    """Number of decodes that one sample costs, timed and untimed. In the mode `eager`, each copy decodes once untimed
    before the timed call. In other modes, each call runs untimed before it is timed: twice in the mode `graph`, else
    once."""
    if mode == "eager":
        return copies + 1
    return calls_of(mode, copies) * (3 if mode == "graph" else 2)


Call = Callable[[], None]
_LEAD, _SHORTEST_LEAD_US, _LONGEST_LEAD_US = 2.0, 100.0, 20_000.0
"""Lengths of the device's wait before timed calls, during which the host queues these calls. The wait is `_LEAD` times
the queueing time of the preceding untimed calls. Its limits are the shortest and the longest lead, in microseconds."""


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
        """Capture one CUDA graph for each span of calls. Returns functions that replay the graphs. Raises
        `CaptureError`.

        The calls run once on a side stream before they are captured there.
        """
        ...


@dataclass
class SampleCall:
    """One call of a sample. It has its own tensors, because a graph stores their addresses."""

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
    """Run one round: rewind, then append and plan on every copy at each step 1..n_c. Sample the steps in `timed`.

    `out` has the shape of a call's output. `sweep` clears the cache before each timed call. `sweep` is None if the
    cache is warm, or if the copies already make it cold. The times of `append` and `plan` are wall times until the
    device has finished, averaged over the copies.
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
    """Decode once in this mode, for a check of the output.

    `out` is first filled with NaN. A graph is captured with zeros as queries, so only its replay can have used `q`.
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
        """Make a function that takes one sample of this step, in microseconds. Each call of the function uses new
        queries."""
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
        """Repeat a call of the last sample without a graph, and compare the two outputs.

        Returns the largest difference divided by the largest value. If the result is large, the timed call did not
        compute the attention of its queries.
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
