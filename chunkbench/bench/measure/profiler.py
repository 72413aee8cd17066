"""Makes the calls of a profile on one session: timed in several ways, traced, or watched by PyTorch's profiler.

Each call is a round of its own: rewind, append and plan up to the last step, then decode there. So calls of all kinds
can take turns in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Literal, get_args

import torch

from chunkbench.bench.contract import Session
from chunkbench.bench.measure.loop import Feed, Round, no_collections, run_round
from chunkbench.bench.store.profile import Operator, TraceFacts, Unit, WatchedFacts
from chunkbench.kernels.trace import PARTS, Trace, TracedCall

TimedCall = Literal["cold", "warm", "one_thread"]
TIMED: tuple[TimedCall, ...] = get_args(TimedCall)
TRACED: tuple[TracedCall, ...] = get_args(TracedCall)


def timed_call(
    session: Session, feed: Feed, out: torch.Tensor, n_c: int, nonce: int, call: TimedCall, sweep: Callable[[], None]
) -> Round:
    """Time the decode of step n_c.

    `call`: with cold caches, with cold caches and one thread, or with caches that an untimed decode has warmed.
    """
    q = feed.queries(nonce, n_c)
    before = sweep if call != "warm" else lambda: session.decode(q, out)
    with thread_count(1 if call == "one_thread" else torch.get_num_threads()):
        return run_round(session, feed, out, n_c, (n_c,), nonce, before)


def traced_call(
    session: Session, feed: Feed, out: torch.Tensor, n_c: int, nonce: int, call: TracedCall, sweep: Callable[[], None]
) -> TraceFacts | None:
    """The facts of a trace of the decode of step n_c; None if the session cannot trace.

    The caches are cold, except for the call `compute`. The call `compute` runs twice, and the first trace is discarded.
    In the second run, K and V come from the caches.
    """
    q = _to_last_step(session, feed, out, n_c, nonce)
    if call == "compute":
        session.trace(q, out, call)
    else:
        sweep()
    with no_collections():
        trace = session.trace(q, out, call)
    return None if trace is None else trace_facts(trace)


def trace_facts(trace: Trace) -> TraceFacts:
    """Convert a trace to facts.

    A unit's times for scores, softmax and values do not add up to its whole time. The rest is spent on starting rows
    and writing results.
    """
    parts = [trace.parts[:, PARTS.index(part)] for part in ("scores", "softmax", "values")]
    columns = (trace.thread, trace.shared, trace.begin, trace.ready, trace.end, *parts, trace.read_bytes, trace.flops)
    units = zip(*(column.tolist() for column in columns), strict=True)
    return TraceFacts(
        threads=trace.threads,
        seconds=trace.seconds,
        place_bytes=trace.place_bytes,
        units=tuple(Unit(*unit) for unit in units),
    )


def watched_call(
    session: Session, feed: Feed, out: torch.Tensor, n_c: int, nonce: int, sweep: Callable[[], None]
) -> WatchedFacts | None:
    """The duration and the PyTorch operators of the decode of step n_c, with cold caches. None if PyTorch's profiler
    sees no operator.

    The profiler is `torch.autograd.profiler`, because the first use of `torch.profiler` takes seconds.
    """
    q = _to_last_step(session, feed, out, n_c, nonce)
    sweep()
    with no_collections(), torch.autograd.profiler.profile() as watched:
        started = perf_counter()
        session.decode(q, out)
        seconds = perf_counter() - started
    found = [Operator(each.key, each.count, float(each.self_cpu_time_total)) for each in watched.key_averages()]
    ordered = tuple(sorted(found, key=lambda each: -each.self_us))
    return WatchedFacts(us=seconds * 1e6, operators=ordered) if ordered else None


def repeat(session: Session, feed: Feed, out: torch.Tensor, n_c: int, nonce: int, seconds: float) -> int:
    """Decode for about `seconds`, with warm caches. Returns the number of decodes."""
    q = _to_last_step(session, feed, out, n_c, nonce)
    end, calls = perf_counter() + seconds, 0
    while calls == 0 or perf_counter() < end:
        session.decode(q, out)
        calls += 1
    return calls


def _to_last_step(session: Session, feed: Feed, out: torch.Tensor, n_c: int, nonce: int) -> Any:
    """Bring the session to step n_c. Returns the queries of that step."""
    run_round(session, feed, out, n_c, (), nonce, None)
    return feed.queries(nonce, n_c)


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Let PyTorch, and code that reads PyTorch's setting, use `count` threads in this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
