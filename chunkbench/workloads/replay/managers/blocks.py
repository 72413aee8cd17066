"""A pool of blocks that have keys and reference counts. Ids only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from chunkbench.kernels.integers import Bools, Ints


class Blocks(ABC):
    """Blocks 1 to `blocks`. A block without references is free; it keeps its key until it is taken.

    Free blocks without a key are taken first, those given back last before others, and before those never used. Then
    come those with a key.
    """

    # What is known of a block is in arrays, which grow when blocks are used for the first time. There is no block 0.
    _arrays: tuple[str, ...] = ("_references",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.shared = 0
        """Blocks with several references."""
        self.shared_references = 0
        """References of these blocks."""
        self.evictable = 0
        """Free blocks that have a key."""
        self.evictions = 0
        """Blocks that lost their key because they were taken."""
        self._used = 0
        """Blocks that were ever taken: 1 to this."""
        self._nameless: list[int] = []
        """Free blocks that were used before and have no key; the last one is taken first."""
        self._references = np.zeros(8, np.int32)

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return self.evictable + len(self._nameless) + self.blocks - self._used

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are free."""
        return len(blocks) - int(np.count_nonzero(self._references[ids_of(blocks)]))

    @abstractmethod
    def find(self, keys: Ints) -> list[int]:
        """The blocks of the leading keys, up to the first key that no block has."""

    @abstractmethod
    def name(self, before: int | None, blocks: Sequence[int], keys: Ints) -> None:
        """Give taken blocks their keys. `before`: the block in front of them; None: there is none."""

    def share(self, blocks: Sequence[int]) -> None:
        """A sequence joins: add a reference to each of these different blocks. One without references has a key."""
        ids = ids_of(blocks)
        before = self._references[ids]
        self._references[ids] = before + 1
        free, single = int(np.count_nonzero(before == 0)), int(np.count_nonzero(before == 1))
        self.evictable -= free
        self.shared += single
        self.shared_references += len(blocks) - free + single

    def take(self, count: int) -> list[int]:
        """Blocks with one reference each and without keys. The caller makes sure that so many are free."""
        taken: list[int] = []
        if self._nameless:
            split = max(0, len(self._nameless) - count)
            taken = self._nameless[split:][::-1]
            del self._nameless[split:]
            self._references[taken] = 1
        if fresh := min(count - len(taken), self.blocks - self._used):
            first = self._used + 1
            self._used += fresh
            if self._used >= len(self._references):
                self._make_room()
            taken += range(first, first + fresh)
            self._references[first : first + fresh] = 1
        if missing := count - len(taken):
            taken += self._evict(missing)
            self.evictable -= missing
            self.evictions += missing
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Take one reference from each of these different blocks. Of those that become free and have no key, the first
        will be taken first."""
        ids = ids_of(blocks)
        left = self._references[ids] - 1
        self._references[ids] = left
        single = int(np.count_nonzero(left == 1))
        free = ids[left == 0]
        self.shared -= single
        self.shared_references -= len(ids) - len(free) + single
        with_key = self._have_keys(free)
        self._nameless += free[~with_key][::-1].tolist()
        kept = free[with_key]
        if len(kept):
            self.evictable += len(kept)
            self._keep(kept)

    @abstractmethod
    def _have_keys(self, ids: Ints) -> Bools:
        """Which of these blocks have keys."""

    @abstractmethod
    def _keep(self, ids: Ints) -> None:
        """Blocks with keys became free, in this order."""

    @abstractmethod
    def _evict(self, count: int) -> list[int]:
        """Take free blocks that have keys; they have none then."""

    def _make_room(self) -> None:
        """Lengthen the arrays until they hold all blocks that were used."""
        more = max(self._used + 1 - len(self._references), len(self._references) // 2)
        for name in self._arrays:
            before = getattr(self, name)
            setattr(self, name, np.append(before, np.zeros(more, before.dtype)))


def ids_of(blocks: Sequence[int]) -> Ints:
    return np.array(blocks, np.int64)
