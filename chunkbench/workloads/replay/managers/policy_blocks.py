"""A pool of blocks that have keys and reference counts, and of which a policy chooses which is taken. Ids only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from chunkbench.kernels.integers import Ints


class Policy(ABC):
    """Chooses among the free blocks that have a key. It knows blocks by their keys."""

    @abstractmethod
    def found(self, keys: Sequence[int]) -> None:
        """A sequence joins, found these blocks, perhaps none, and has them."""

    @abstractmethod
    def named(self, key: int) -> None:
        """A sequence computed a block and has it. Another block had this key until now, or none."""

    @abstractmethod
    def freed(self, key: int) -> None:
        """No sequence has the block any more."""

    @abstractmethod
    def held(self, key: int) -> None:
        """The block is no longer free: `found` or `named` follows."""

    @abstractmethod
    def victim(self) -> int:
        """The key of the free block that is taken now."""


class PolicyBlocks:
    """Does for `HashedBlocks` what `KeyedBlocks` does, with any policy; slower, and with more memory.

    Free blocks without a key are taken first, those given back last before others, and before those never used. Then
    the policy chooses, among free blocks only. A key has one block. If a key is computed again, the new block gets it,
    and the older one is free without a key; as long as sequences have the older block, the new one has no key.
    """

    def __init__(self, blocks: int, policy: Policy) -> None:
        self.blocks = blocks
        self.shared = self.shared_references = self.evictable = self.evictions = 0
        """As in `KeyedBlocks`."""
        self._policy = policy
        self._used = 0
        """Blocks that were ever taken: 1 to this."""
        self._nameless: list[int] = []
        """Free blocks that were used before and have no key; the last one is taken first."""
        self._references: dict[int, int] = {}
        """Of blocks that are not free."""
        self._keys: dict[int, int] = {}
        """By block."""
        self._blocks: dict[int, int] = {}
        """By key."""

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return self.evictable + len(self._nameless) + self.blocks - self._used

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are free."""
        return sum(block not in self._references for block in blocks)

    def find(self, keys: Ints) -> list[int]:
        """The blocks of the leading keys, up to the first key that no block has."""
        found: list[int] = []
        for key in keys.tolist():
            if key not in self._blocks:
                break
            found.append(self._blocks[key])
        return found

    def share(self, blocks: Sequence[int]) -> None:
        """A sequence joins: add a reference to each of these different blocks. One without references has a key."""
        for block in blocks:
            before = self._references.get(block, 0)
            self._references[block] = before + 1
            if before == 0:
                self.evictable -= 1
                self._policy.held(self._keys[block])
            else:
                self.shared += before == 1
                self.shared_references += 1 + (before == 1)
        self._policy.found([self._keys[block] for block in blocks if block in self._keys])

    def take(self, count: int) -> list[int]:
        """Blocks with one reference each and without keys. The caller makes sure that so many are free."""
        taken: list[int] = []
        for _ in range(count):
            if self._nameless:
                block = self._nameless.pop()
            elif self._used < self.blocks:
                self._used = block = self._used + 1
            else:
                block = self._blocks.pop(self._policy.victim())
                del self._keys[block]
                self.evictable -= 1
                self.evictions += 1
            self._references[block] = 1
            taken.append(block)
        return taken

    def name(self, before: int | None, blocks: Sequence[int], keys: Ints) -> None:
        """Give taken blocks their keys. `before` does not matter here."""
        for block, key in zip(blocks, keys.tolist(), strict=True):
            older = self._blocks.get(key)
            if older is not None:
                if older in self._references:
                    continue
                del self._keys[older]
                self.evictable -= 1
                self._nameless.append(older)
                self._policy.held(key)
            self._blocks[key], self._keys[block] = block, key
            self._policy.named(key)

    def give_back(self, blocks: Sequence[int]) -> None:
        """Take one reference from each of these different blocks. Of those without a key that become free, the first
        will be taken first; the policy hears of the others in this order."""
        nameless: list[int] = []
        for block in blocks:
            left = self._references[block] = self._references[block] - 1
            if left:
                self.shared -= left == 1
                self.shared_references -= 1 + (left == 1)
                continue
            del self._references[block]
            key = self._keys.get(block)
            if key is None:
                nameless.append(block)
            else:
                self.evictable += 1
                self._policy.freed(key)
        self._nameless += reversed(nameless)
