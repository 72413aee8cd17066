"""The operation `replay`: requests through a cache manager on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from chunkbench.server.scheduling import Rules
from chunkbench.traffic.generated import GENERATED, Demand
from chunkbench.workloads.growth.methods import Sample
from chunkbench.workloads.growth.result import GrowthPoint
from chunkbench.workloads.replay.methods import KINDS, Memory
from chunkbench.workloads.replay.simulate import replay
from chunkbench.workloads.replay.step_time import Constant

_DEMAND = Demand(rate=40.0, count=0, n_p=192, n_s=128, n_c=8, prompts=16)
_SLOTS, _LONGEST = 1 << 15, 256


@contextmanager
def replays(point: GrowthPoint) -> Iterator[Sample]:
    requests = GENERATED["fixed"](replace(_DEMAND, count=point.size))

    def sample() -> float:
        manager = KINDS["radix_tree"].make(Memory(_SLOTS, 32, 64, _LONGEST))
        begun = perf_counter()
        replay(requests, manager, Rules(), Constant(0.02))
        return perf_counter() - begun

    yield sample
