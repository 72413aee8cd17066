"""The timed loop on a CPU: one round of one implementation.

Only the call itself is between the two clock readings of a sample. `benchmarks/harness_overhead.py` measures the
overhead that remains.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol

import torch

from chunkbench.bench.contract import Session


class Feed(Protocol):
    """The source of the loop's tokens and queries."""

    def completion(self, step: int) -> tuple[Sequence[int], torch.Tensor, torch.Tensor]: ...

    def queries(self, *purpose: int) -> torch.Tensor: ...


@dataclass
class Round:
    """The times of one round in microseconds. `decode_us` has one entry for each timed step. `append_us` and `plan_us`
    have one entry for each step."""

    decode_us: list[float] = field(default_factory=list)
    append_us: list[float] = field(default_factory=list)
    plan_us: list[float] = field(default_factory=list)
    drift: float = 0.0
    """GPU only: difference between the outputs of a timed call and of its repetition, divided by the largest value."""


def run_round(
    session: Session,
    feed: Feed,
    out: torch.Tensor,
    n_c: int,
    timed: Collection[int],
    nonce: int,
    sweep: Callable[[], None] | None,
) -> Round:
    """Run one round: rewind, then append and plan at each step 1..n_c. Time a decode at the steps in `timed`.

    `sweep` clears the caches before each timed call. Without `sweep` the caches stay warm. The queries depend only on
    `nonce` and the step, so all implementations of a round get the same queries.
    """
    result = Round()
    decode = session.decode
    session.rewind()
    with no_collections():
        for step in range(1, n_c + 1):
            tokens, k, v = feed.completion(step)
            started = perf_counter_ns()
            session.append(tokens, k, v)
            appended = perf_counter_ns()
            session.plan()
            planned = perf_counter_ns()
            result.append_us.append((appended - started) / 1000)
            result.plan_us.append((planned - appended) / 1000)
            if step not in timed:
                continue
            q = feed.queries(nonce, step)
            if sweep is not None:
                sweep()
                perf_counter_ns()  # loads the interpreter's own cache lines again, before the timed call
            started = perf_counter_ns()
            decode(q, out)
            ended = perf_counter_ns()
            result.decode_us.append((ended - started) / 1000)
    return result


@contextmanager
def no_collections() -> Iterator[None]:
    """Switch the garbage collector off, because a collection inside a timed call would add its time to the sample."""
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
