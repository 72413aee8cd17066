"""Policies that choose which free block with a key is taken: the optimum, least frequently used, ARC."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from chunkbench.attention.text import Text
from chunkbench.workloads.replay.managers.policy_blocks import Policy

_MOST_OUTDATED = 1 << 16
"""The heap is rebuilt when it has this many more stale entries than live ones."""


class _Ranked(Policy):
    """A policy that takes the free block with the lowest rank. A block's rank does not change while the block is
    free.
    """

    def __init__(self) -> None:
        self._free: dict[int, tuple[int, int, int]] = {}
        """Key of each free block -> its rank, which ends with the key."""
        self._heap: list[tuple[int, int, int]] = []
        """Ranks of free blocks, with stale ranks among them."""

    @abstractmethod
    def rank(self, key: int) -> tuple[int, int]:
        """Two numbers that order the free blocks. The block with the smallest pair is taken first."""

    def freed(self, key: int) -> None:
        self._free[key] = place = (*self.rank(key), key)
        heappush(self._heap, place)
        if len(self._heap) > 2 * len(self._free) + _MOST_OUTDATED:
            self._heap = list(self._free.values())
            heapify(self._heap)

    def held(self, key: int) -> None:
        del self._free[key]

    def victim(self) -> int:
        while True:
            place = heappop(self._heap)
            if self._free.get(place[2]) is place:
                del self._free[place[2]]
                return place[2]


class LeastFrequent(_Ranked):
    """LFU: takes the block with the fewest uses since it was computed. Among equally used blocks, it takes the one that
    became free first.

    The computation of a block counts as a use, and so does each sequence that finds the block. The count ends when the
    block is taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[int, int] = {}
        self._time = 0

    def rank(self, key: int) -> tuple[int, int]:
        self._time += 1
        return self._uses[key], self._time

    def found(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._uses[key] += 1

    def named(self, key: int) -> None:
        self._uses[key] = 1

    def victim(self) -> int:
        key = super().victim()
        del self._uses[key]
        return key


class Belady(_Ranked):
    """The optimum: takes the block whose next use is furthest away. Among blocks of one request, it takes the last
    block in the text.

    Sequences must join in the order of `texts`, each after the previous one left. Every text must fit. A prompt can
    find only its leading full blocks, and not the block of its last token. A request computes all later blocks of its
    text, and the new blocks get the keys. So an older block with such a key has no next use.
    """

    def __init__(self, texts: Sequence[Text], block_tokens: int) -> None:
        super().__init__()
        self._texts, self._block_tokens = texts, block_tokens
        self._now = -1
        """Index of the text whose sequence joined last."""
        self._places: dict[int, int] = {}
        """Key of a block of that text -> the block's index in the text."""
        self._next: list[npt.NDArray[np.int32]] = []
        """[text][block] index of the next text that finds the block; the number of texts if none does."""
        later: dict[int, int] = {}
        for number in range(len(texts) - 1, -1, -1):
            keys = self._computed(number)
            self._next.append(np.array([later.get(key, len(texts)) for key in keys], np.int32))
            findable = (texts[number].prompt - 1) // block_tokens
            later.update(dict.fromkeys(keys[:findable], number))
            for key in keys[findable:]:
                later.pop(key, None)
        self._next.reverse()

    def _computed(self, number: int) -> list[int]:
        """Keys of the blocks that a sequence fills. The last token of an answer is not computed."""
        text = self._texts[number]
        keys: list[int] = text.keys(self._block_tokens)[: (text.total - 1) // self._block_tokens].tolist()
        return keys

    def found(self, keys: Sequence[int]) -> None:
        self._now += 1
        self._places = {key: place for place, key in enumerate(self._computed(self._now))}

    def named(self, key: int) -> None:
        """Do nothing: the next use is already known."""

    def rank(self, key: int) -> tuple[int, int]:
        place = self._places[key]
        return -int(self._next[self._now][place]), -place


class Adaptive(Policy):
    """ARC (Megiddo and Modha, 2003): keeps a list of blocks used once and a list of blocks used again. Each list is in
    the order in which its blocks became free.

    `target` is the number of blocks used once that the policy tries to keep. The policy also remembers keys that were
    evicted from each list. As in the paper, the number of these keys is limited. If an evicted key of blocks used once
    is computed again, `target` grows. If an evicted key of blocks used again is computed again, `target` shrinks. A new
    block gets its key only after older blocks were evicted. So `target` changes just after the eviction.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.target = 0.0
        self._again: dict[int, bool] = {}
        """Key -> whether its block was used again (T2 of the paper) or only once (T1)."""
        self._sizes = [0, 0]
        """[used once, used again] number of blocks."""
        self._free = (OrderedDict[int, None](), OrderedDict[int, None]())
        self._ghosts = (OrderedDict[int, None](), OrderedDict[int, None]())
        """[used once, used again] keys that were evicted from the list, the oldest first: B1 and B2 of the paper."""

    def named(self, key: int) -> None:
        once, again = self._ghosts
        if key in once:
            self.target = min(self.target + max(1.0, len(again) / len(once)), self.blocks)
            del once[key]
            self._place(key, True)
        elif key in again:
            self.target = max(self.target - max(1.0, len(once) / len(again)), 0.0)
            del again[key]
            self._place(key, True)
        else:
            self._place(key, key in self._again)  # a key that exists is used again
        self._forget()

    def found(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._place(key, True)

    def freed(self, key: int) -> None:
        self._free[self._again[key]][key] = None

    def held(self, key: int) -> None:
        del self._free[self._again[key]][key]

    def victim(self) -> int:
        again = self._sizes[0] <= self.target
        if not self._free[again]:  # sequences hold all blocks of this list
            again = not again
        key, _ = self._free[again].popitem(last=False)
        del self._again[key]
        self._sizes[again] -= 1
        self._ghosts[again][key] = None
        self._forget()
        return key

    def _place(self, key: int, again: bool) -> None:
        if key in self._again:
            self._sizes[self._again[key]] -= 1
        self._again[key] = again
        self._sizes[again] += 1

    def _forget(self) -> None:
        once, again = self._ghosts
        while self._sizes[0] + len(once) > self.blocks:
            once.popitem(last=False)
        while sum(self._sizes) + len(once) + len(again) > 2 * self.blocks:
            again.popitem(last=False)
