"""The timed loop on a GPU: one round of one implementation, over sessions that take turns.

What a sample is depends on the mode (docs/measuring.md). All of the device that this needs is behind `Device`, so
that a fake can stand in for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from chunkbench.baselines.contract import Session
from chunkbench.experiment.terms import Mode
from chunkbench.measure.clocks import ClockGuard
from chunkbench.measure.loop import Feed, Round
from chunkbench.measure.rotation import calls_of

Call = Callable[[], None]
_LEAD, _SHORTEST_LEAD_US, _LONGEST_LEAD_US = 2.0, 100.0, 20_000.0
"""The device is kept waiting for this many times what queueing the calls took before, but not for ever."""


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
        """Microseconds between two events that have happened."""
        ...

    def stall(self, us: float) -> None:
        """Queue nothing but waiting, for about so long."""
        ...

    def capture(self, spans: Sequence[Sequence[Call]]) -> list[Call]:
        """A replay for each span of calls, in a graph of its own: run once on a side stream, then captured there.

        Raises `CaptureError`.
        """
        ...


@dataclass
class Lane:
    """A call of a sample: on which session, with tensors of its own, whose places in memory a graph remembers."""

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
    """Rewind, then append and plan on every copy at every step 1..n_c and take a sample at the timed ones.

    `out` has the shape of what a call gives. `sweep` makes the cache cold before each timed call (None: the rotation
    of the copies does, or it is warm). `append` and `plan` are wall times, the device waited for, averaged over
    the copies.
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
    """One decode as the mode does it, for a check.

    `out` is poisoned with NaN. A graph is captured with zeros in the place of `q`, which come only for the replay.
    """
    run = Lane(session, q, out).call
    if mode == "graph":
        lane = Lane(session, torch.zeros_like(q), out)
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
            Lane(copies[number % len(copies)], torch.empty_like(q), torch.empty_like(out))
            for number in range(max(len(copies), calls_of(mode, len(copies))))
        ]

    def at(self, step: int) -> Callable[[], float]:
        """Takes the sample of a step, in microseconds; if that is called again, with other queries."""
        if self._mode == "eager":
            self._lanes.append(self._lanes.pop(0))  # the next copy
        calls = [lane.call for lane in self._lanes]
        # What lies between two events: a call, where the cache is swept before each, else all of them.
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
        """How far the output of a call of the last sample lies from that of the same call made again, outside of any
        graph: the largest difference over the largest value. What was timed is what was checked."""
        lane = self._lanes[0]
        again = torch.full_like(lane.out, float("nan"))
        lane.session.decode(lane.q, again)
        self._device.synchronise()
        found = ((lane.out.double() - again.double()).abs().max() / again.double().abs().max()).item()
        return found if isfinite(found) else inf

    def _refresh(self, step: int, number: int) -> None:
        """Other queries for every call."""
        for place, lane in enumerate(self._lanes):
            lane.q.copy_(self._feed.queries(self._nonce, step, number, place))

    def _run_in(self, calls: Sequence[Call]) -> float:
        """Every call once, untimed: what is compiled, chosen or loaded at the first call of a step is so now, and every
        copy has had its turn, the next one the longest ago. Microseconds that queueing a call took."""
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
        """Microseconds of a call on the device, which is stalled until a span is queued: it never waits for the host.
        Each span, of calls or the replay of them all, has its own pair of events."""
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


@contextmanager
def no_collections() -> Iterator[None]:
    """A collection inside a timed call would be charged to whoever is being timed."""
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
