"""The parts of a decode step: plan, append, attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

from chunkbench.attention import ChunkAttention
from chunkbench.kernels.integers import Ints
from chunkbench.workloads.growth.forest import CHUNK, SHARED, Prompts
from chunkbench.workloads.growth.methods import Sample
from chunkbench.workloads.growth.result import GrowthPoint

_HEADS, _DIM, _OWN = 32, 128, 16


class _Step:
    """A cache with this number of sequences, and the inputs of a step."""

    def __init__(self, point: GrowthPoint) -> None:
        self._prompts = Prompts(_OWN)
        self.size, dtype = point.size, getattr(torch, point.dtype)
        self.attention = ChunkAttention(_HEADS, _DIM, chunk_size=CHUNK, dtype=dtype)
        numbers = torch.Generator().manual_seed(0)
        kv = torch.randn(SHARED + _OWN, _HEADS, _DIM, generator=numbers).to(dtype)
        for place in range(self.size):
            part, self.last = kv[SHARED if place else 0 :], self._prompts.prompt()
            self.attention.add_sequence(self.last, part, part)
        self.new = torch.randn(self.size, _HEADS, _DIM, generator=numbers).to(dtype)
        self.out = torch.empty_like(self.new)

    def ids(self) -> Ints:
        return self._prompts.tokens(self.size)

    def append(self) -> float:
        """Append two tokens, one after the other, to every sequence. Returns seconds for one: V of the second one lies
        in the lines of the first one. All sequences are cut to their prompts afterwards."""
        tokens = [self.ids(), self.ids()]
        begun = perf_counter()
        for ids in tokens:
            self.attention.append(ids, self.new, self.new)
        seconds = perf_counter() - begun
        for sequence in self.attention.sequences:
            self.attention.truncate(sequence, SHARED + _OWN)
        return seconds / len(tokens)


@contextmanager
def plan(point: GrowthPoint) -> Iterator[Sample]:
    step = _Step(point)
    part = step.new[:1].expand(_OWN if point.size > 1 else SHARED + _OWN, -1, -1)

    def sample() -> float:
        # A sequence that leaves and comes again makes the plan outdated.
        step.attention.remove_sequence(step.attention.sequences[-1])
        step.attention.add_sequence(step.last, part, part)
        begun = perf_counter()
        step.attention.plan()
        return perf_counter() - begun

    yield sample


@contextmanager
def append(point: GrowthPoint) -> Iterator[Sample]:
    yield _Step(point).append


@contextmanager
def append_bytes(point: GrowthPoint) -> Iterator[Sample]:
    """The same bytes go to the places where a cache of chunks has them: a row of K and of V for each head, each head
    with a chunk of its own."""
    dtype = getattr(torch, point.dtype)
    new = torch.ones(point.size, _HEADS, 2, _DIM, dtype=dtype)
    places = torch.zeros(point.size, _HEADS, 2, CHUNK, _DIM, dtype=dtype)[:, :, :, _OWN]

    def sample() -> float:
        begun = perf_counter()
        places.copy_(new)
        return perf_counter() - begun

    yield sample


@contextmanager
def decode(point: GrowthPoint) -> Iterator[Sample]:
    step = _Step(point)
    step.attention.plan()

    def sample() -> float:
        begun = perf_counter()
        step.attention.decode(step.new, step.out)
        return perf_counter() - begun

    yield sample
