"""What a profile records: one case, and other calls of its implementation in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveFloat

from chunkbench.bench.experiment.terms import Count
from chunkbench.bench.store.results import DecodeResult, Facts, Positive


class Unit(NamedTuple):
    """One unit of work in a traced call (`chunkbench.kernels.trace`).

    `begin_s`, `ready_s`, `end_s`: times in seconds. Time 0 is shortly after the start of the call. `scores_s`,
    `softmax_s`, `values_s`: seconds that the unit spent in these parts.
    """

    thread: Count
    shared: bool
    """Whether several query rows use the chunks that the unit reads."""
    begin_s: float
    ready_s: float
    end_s: float
    scores_s: float
    softmax_s: float
    values_s: float
    read_bytes: Count
    flops: Count


class TraceFacts(Facts):
    threads: Count
    seconds: PositiveFloat
    """Seconds of the native call, measured by its caller in Python."""
    place_bytes: Count
    units: tuple[Unit, ...]


class Operator(NamedTuple):
    """One of PyTorch's operators in one decode."""

    name: str
    calls: Count
    self_us: float


class WatchedFacts(Facts):
    """A decode that PyTorch's profiler watched."""

    us: PositiveFloat
    """Microseconds of the decode, including the profiler's own work."""
    operators: tuple[Operator, ...]
    """The operators of the decode, the longest first."""


class ProfileFacts(Facts):
    """A profile of one case. Each kind of call has one entry per round, or no entry if the implementation cannot make
    this call."""

    case: DecodeResult
    """The case, whose samples are decodes with cold caches at the last step of n_c."""
    warm_us: tuple[Positive, ...] = ()
    one_thread_us: tuple[Positive, ...] = ()
    """Microseconds of decodes with cold caches and one thread; empty if the case itself has one thread."""
    decode: tuple[TraceFacts, ...] = ()
    read: tuple[TraceFacts, ...] = ()
    compute: tuple[TraceFacts, ...] = ()
    watched: tuple[WatchedFacts, ...] = ()
    counters: Mapping[str, NonNegativeFloat] = Field(default_factory=dict)
    """Event of `perf stat` -> number of events in one decode with warm caches."""
    no_counters: str = ""
    """The reason why there are no counters; empty if there are counters."""
    l2_bytes: Count | None = None
    """Size, in bytes, of the level-2 cache of one core."""
