"""A pool of blocks that have keys and reference counts, and are taken least recently used first. Ids only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice


class KeyedBlocks:
    """Blocks 1 to `blocks`. A block without references is free; it keeps its key until it is taken.

    Free blocks without a key are taken first, those given back last before others, and before those never used. Then
    come those with a key, the ones given back first before others.
    """

    # The lists per block grow when blocks are used for the first time, so a memory without limit costs what was used of
    # it. There is no block 0. The loops run once per block, so attributes are local there.

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.shared = 0
        """Blocks with several references."""
        self.shared_references = 0
        """References of these blocks."""
        self.evictions = 0
        """Blocks that lost their key because they were taken."""
        self._nameless: list[int] = []
        """Free blocks that were used before and have no key; the last one is taken first."""
        self._evictable: OrderedDict[int, None] = OrderedDict()
        """Free blocks that have a key; the first one is taken first."""
        self._references = [0]
        self._key: list[int | None] = [None]
        self._first: dict[int, int] = {}
        """The first block that got each key."""
        self._more: dict[int, list[int]] = {}
        """Further blocks with the same key."""

    @property
    def evictable(self) -> int:
        """Free blocks that have a key."""
        return len(self._evictable)

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return len(self._evictable) + len(self._nameless) + self.blocks - len(self._key) + 1

    def free_among(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free."""
        references = self._references
        return sum(references[block] == 0 for block in blocks)

    def find(self, keys: Sequence[int], most: int) -> list[int]:
        """The blocks of the leading keys, up to the first key that no block has, `most` at most."""
        get = self._first.get
        found: list[int] = []
        for key in islice(keys, most):
            block = get(key)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these blocks. One without references must have a key."""
        references = self._references
        for block in blocks:
            count = references[block]
            references[block] = count + 1
            if count == 0:
                del self._evictable[block]
            elif count == 1:
                self.shared += 1
                self.shared_references += 2
            else:
                self.shared_references += 1

    def take(self, count: int) -> list[int]:
        """Blocks with one reference each and without keys. The caller makes sure that so many are free."""
        references = self._references
        split = max(0, len(self._nameless) - count)
        taken = self._nameless[split:][::-1]
        del self._nameless[split:]
        for block in taken:
            references[block] = 1
        first = len(self._key)
        fresh = min(count - len(taken), self.blocks + 1 - first)
        if fresh:
            taken += range(first, first + fresh)
            references += [1] * fresh
            self._key += [None] * fresh
        keys, evicted = self._key, count - len(taken)
        for _ in range(evicted):
            block, _ = self._evictable.popitem(last=False)
            taken.append(block)
            references[block] = 1
            key = keys[block]
            assert key is not None
            self._forget(key, block)
        self.evictions += evicted
        return taken

    def name(self, blocks: Iterable[int], keys: Iterable[int]) -> None:
        """Give taken blocks their keys; blocks beyond the last key have none."""
        first, key_of = self._first, self._key
        for block, key in zip(blocks, keys, strict=False):
            key_of[block] = key
            if first.setdefault(key, block) != block:
                self._more.setdefault(key, []).append(block)

    def give_back(self, blocks: Iterable[int]) -> None:
        """Take one reference from each of these blocks. Of those that become free and are alike in having a key or not,
        the first will be taken first."""
        evictable, references, keys = self._evictable, self._references, self._key
        nameless: list[int] = []
        for block in blocks:
            left = references[block] = references[block] - 1
            if left == 0:
                if keys[block] is None:
                    nameless.append(block)
                else:
                    evictable[block] = None
            elif left == 1:
                self.shared -= 1
                self.shared_references -= 2
            else:
                self.shared_references -= 1
        self._nameless += reversed(nameless)

    def _forget(self, key: int, block: int) -> None:
        """Take a block's key away; the next block with this key becomes the first."""
        self._key[block] = None
        more = self._more.get(key)
        if more is None:
            del self._first[key]
            return
        if self._first[key] == block:
            self._first[key] = more.pop(0)
        else:
            more.remove(block)
        if not more:
            del self._more[key]
