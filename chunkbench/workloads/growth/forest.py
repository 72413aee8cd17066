"""Operations on the prefix tree: integers alone, no K and V."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.integers import Ints
from chunkbench.workloads.growth.methods import Sample
from chunkbench.workloads.growth.result import GrowthPoint

CHUNK = 64
SHARED, OWN = 1024, 64
"""Tokens of a prompt: a system prompt that all share, and a question."""
_VOCABULARY = 32_000


class Prompts:
    """Draws prompts. Equal seeds give equal prompts."""

    def __init__(self, own: int = OWN, shared: int = SHARED) -> None:
        self._chance, self._own = np.random.default_rng(0), own
        self._shared = self.tokens(shared)

    def tokens(self, count: int) -> Ints:
        return self._chance.integers(0, _VOCABULARY, count)

    def prompt(self) -> Ints:
        return np.concatenate([self._shared, self.tokens(self._own)])


def _joins(tree: PrefixTree, draw: Callable[[], Ints]) -> Sample:
    """Each sample joins a prompt that it draws, and takes it out again afterwards."""

    def sample() -> float:
        prompt = draw()
        begun = perf_counter()
        joined = tree.join(prompt)
        seconds = perf_counter() - begun
        tree.leave(joined.sequence)
        return seconds

    return sample


@contextmanager
def join(point: GrowthPoint) -> Iterator[Sample]:
    tree, prompts = PrefixTree(CHUNK), Prompts()
    for _ in range(100):
        tree.join(prompts.prompt())
    yield _joins(tree, lambda: prompts.tokens(point.size))


@contextmanager
def join_sequences(point: GrowthPoint) -> Iterator[Sample]:
    tree, prompts = PrefixTree(CHUNK), Prompts()
    for _ in range(point.size):
        tree.join(prompts.prompt())
    yield _joins(tree, prompts.prompt)


@contextmanager
def match(point: GrowthPoint) -> Iterator[Sample]:
    tree, prompts = PrefixTree(CHUNK), Prompts()
    asked = [prompts.prompt() for _ in range(point.size)]
    for prompt in asked:
        tree.join(prompt)

    def sample() -> float:
        begun = perf_counter()
        for prompt in asked:
            tree.match(prompt)
        return perf_counter() - begun

    yield sample


@contextmanager
def evict(point: GrowthPoint) -> Iterator[Sample]:
    tree, prompts = PrefixTree(CHUNK, ChunkPool(point.size), retain=True), Prompts()
    length = SHARED + OWN
    for _ in range(point.size * CHUNK // length):
        tree.leave(tree.join(prompts.tokens(length)).sequence)
    yield _joins(tree, lambda: prompts.tokens(length))
