"""A pool of blocks with keys and reference counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from chunkbench.kernels.integers import Bools, Ints


class Blocks(ABC):
    """A pool of the blocks 1 to `blocks`. A block without references is free, and keeps its key until it is taken.

    Used blocks without a key are taken first, the last returned one before the others. Blocks that were never used come
    next. Blocks with a key come last.
    """

    # Arrays with an entry for each block; they grow when blocks are used for the first time. There is no block 0.
    _arrays: tuple[str, ...] = ("_references",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.shared = 0
        """Number of blocks with several references."""
        self.shared_references = 0
        """Number of references to blocks that have several."""
        self.evictable = 0
        """Number of free blocks that have a key."""
        self.evictions = 0
        """How often a block lost its key because it was taken."""
        self._used = 0
        """Number of blocks that were ever taken: these are the blocks 1 to `_used`."""
        self._nameless: list[int] = []
        """Free blocks that were used before and have no key; they are taken from the end."""
        self._references = np.zeros(8, np.int32)

    @property
    def free(self) -> int:
        """Number of blocks that can be taken."""
        return self.evictable + len(self._nameless) + self.blocks - self._used

    def free_among(self, blocks: Sequence[int]) -> int:
        return len(blocks) - int(np.count_nonzero(self._references[ids_of(blocks)]))

    @abstractmethod
    def find(self, keys: Ints) -> list[int]:
        """The blocks of the leading keys, up to the first key that no block has."""

    @abstractmethod
    def name(self, before: int | None, blocks: Sequence[int], keys: Ints) -> None:
        """Give keys to consecutive blocks of a text. `before` is the block before the first of them, or None at the
        start of the text.
        """

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each of these distinct blocks, because a sequence joins. A free block must have a key."""
        ids = ids_of(blocks)
        before = self._references[ids]
        self._references[ids] = before + 1
        free, single = int(np.count_nonzero(before == 0)), int(np.count_nonzero(before == 1))
        self.evictable -= free
        self.shared += single
        self.shared_references += len(blocks) - free + single

    def take(self, count: int) -> list[int]:
        """Take `count` blocks. Each gets one reference and no key. The caller makes sure that enough are free."""
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
        """Remove one reference from each of these distinct blocks. The next `take` begins with the blocks that became
        free without a key, in this order.
        """
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
        """[block] whether it has a key."""

    @abstractmethod
    def _keep(self, ids: Ints) -> None:
        """Record that these blocks, which have keys, became free in this order."""

    @abstractmethod
    def _evict(self, count: int) -> list[int]:
        """Take free blocks that have keys, and remove the keys."""

    def _make_room(self) -> None:
        """Lengthen the arrays so that they have an entry for every block in use."""
        more = max(self._used + 1 - len(self._references), len(self._references) // 2)
        for name in self._arrays:
            before = getattr(self, name)
            setattr(self, name, np.append(before, np.zeros(more, before.dtype)))


def ids_of(blocks: Sequence[int]) -> Ints:
    return np.array(blocks, np.int64)
