"""The facts of a profile: one case, and what its implementation did in other calls of the same rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveFloat

from chunkbench.bench.experiment.terms import Count
from chunkbench.bench.store.results import DecodeResult, Facts, Positive


class Unit(NamedTuple):
    """A unit of a traced call (`chunkbench.kernels.trace`). Seconds; the first three count from one moment."""

    thread: Count
    shared: bool
    """Whether its chunks are read for several rows."""
    begin_s: float
    ready_s: float
    end_s: float
    scores_s: float
    softmax_s: float
    values_s: float
    read_bytes: Count
    flops: Count


class TraceFacts(Facts):
    """One traced call."""

    threads: Count
    seconds: PositiveFloat
    """The native call, as its caller in Python sees it."""
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
    """With the profiler's own work."""
    operators: tuple[Operator, ...]
    """The longest first."""


class ProfileFacts(Facts):
    """A profile. Each kind of call has one entry for each round, or none if the implementation cannot show it."""

    case: DecodeResult
    """Decodes with cold caches at one step, the last of n_c."""
    warm_us: tuple[Positive, ...] = ()
    one_thread_us: tuple[Positive, ...] = ()
    """Cold caches; empty where the decodes have one thread anyway."""
    decode: tuple[TraceFacts, ...] = ()
    read: tuple[TraceFacts, ...] = ()
    compute: tuple[TraceFacts, ...] = ()
    watched: tuple[WatchedFacts, ...] = ()
    counters: Mapping[str, NonNegativeFloat] = Field(default_factory=dict)
    """Event of `perf stat` -> its number in one decode with warm caches."""
    no_counters: str = ""
    """Why there are none."""
    l2_bytes: Count | None = None
    """A core's own cache."""
