"""A pool of blocks in which a policy chooses the block to take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from chunkbench.kernels.integers import Bools, Ints
from chunkbench.workloads.replay.managers.pools import Blocks, ids_of


class Policy(ABC):
    """Chooses among the free blocks that have a key. A policy knows blocks by their keys."""

    @abstractmethod
    def found(self, keys: Sequence[int]) -> None:
        """A new sequence found the blocks with these keys in the cache, and now holds them. `keys` may be empty."""

    @abstractmethod
    def named(self, key: int) -> None:
        """A sequence computed a block that now has this key. The key is new, or it belonged to another block before."""

    @abstractmethod
    def freed(self, key: int) -> None:
        """No sequence holds the block with this key any more."""

    @abstractmethod
    def held(self, key: int) -> None:
        """The block with this key is no longer free. A call of `found` or `named` follows."""

    @abstractmethod
    def victim(self) -> int:
        """Choose the free block that is taken now. Returns its key."""


class PolicyBlocks(Blocks):
    """A pool for `HashedBlocks` with any policy. It is slower than `KeyedBlocks` and needs more memory.

    A key has only one block. If a key is computed again and its older block is free, the new block gets the key. The
    older block then stays free without a key. While sequences hold the older block, the new block gets no key.
    """

    def __init__(self, blocks: int, policy: Policy) -> None:
        super().__init__(blocks)
        self._policy = policy
        self._keys: dict[int, int] = {}
        """Block -> its key."""
        self._blocks: dict[int, int] = {}
        """Key -> its block."""

    def find(self, keys: Ints) -> list[int]:
        found: list[int] = []
        for key in keys.tolist():
            if key not in self._blocks:
                break
            found.append(self._blocks[key])
        return found

    def share(self, blocks: Sequence[int]) -> None:
        ids = ids_of(blocks)
        for block in ids[self._references[ids] == 0].tolist():
            self._policy.held(self._keys[block])
        super().share(blocks)
        self._policy.found([self._keys[block] for block in blocks if block in self._keys])

    def name(self, before: int | None, blocks: Sequence[int], keys: Ints) -> None:
        for block, key in zip(blocks, keys.tolist(), strict=True):
            older = self._blocks.get(key)
            if older is not None:
                if self._references[older]:
                    continue
                del self._keys[older]
                self.evictable -= 1
                self._nameless.append(older)
                self._policy.held(key)
            self._blocks[key], self._keys[block] = block, key
            self._policy.named(key)

    def _have_keys(self, ids: Ints) -> Bools:
        return np.array([block in self._keys for block in ids.tolist()], np.bool_)

    def _keep(self, ids: Ints) -> None:
        for block in ids.tolist():
            self._policy.freed(self._keys[block])

    def _evict(self, count: int) -> list[int]:
        taken = [self._blocks.pop(self._policy.victim()) for _ in range(count)]
        for block in taken:
            del self._keys[block]
        self._references[taken] = 1
        return taken
