"""Policies that choose which free block with a key is taken: the optimum, least frequently used, ARC. Ids only."""

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
"""So many places of a heap may be outdated, and as many as are not."""


class _Ranked(Policy):
    """The free block of the lowest rank is taken. A rank does not change while the block is free."""

    def __init__(self) -> None:
        self._free: dict[int, tuple[int, int, int]] = {}
        """Rank of each free block, which ends with its key."""
        self._heap: list[tuple[int, int, int]] = []
        """The same, and outdated ones."""

    @abstractmethod
    def rank(self, key: int) -> tuple[int, int]:
        """Two numbers; the second decides among equal first ones."""

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
    """LFU: the block with the fewest uses since it was computed; among equal ones the one that became free first.

    Its computation is a use, and each sequence that finds it. The count ends when the block is taken.
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
    """The optimum: the block whose next use is furthest; among those of one request the one furthest behind.

    Only for sequences that join one after the other in the order of `texts`, each after the one before left. Texts that
    never fit are not among them. Only leading blocks of a prompt can be found, never its last token. A request computes
    the blocks behind them in any case, and they get its keys; so what is kept until then is of no use.
    """

    def __init__(self, texts: Sequence[Text], block_tokens: int) -> None:
        super().__init__()
        self._texts, self._block_tokens = texts, block_tokens
        self._now = -1
        """Number of the text whose sequence joined last."""
        self._places: dict[int, int] = {}
        """Keys of its blocks, and their places in it."""
        self._next: list[npt.NDArray[np.int32]] = []
        """For each text and each of its blocks: number of the text that finds it next; the number of texts: none."""
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
        """When it is used next is known."""

    def rank(self, key: int) -> tuple[int, int]:
        place = self._places[key]
        return -int(self._next[self._now][place]), -place


class Adaptive(Policy):
    """ARC (Megiddo and Modha, 2003): blocks used once and blocks used again, each least recently used first.

    `target` is how many blocks used once are kept. It grows when a key is computed that was taken from them, and
    shrinks when one is computed that was taken from the others; so many taken keys are remembered as in the paper.
    A block has its key when it was computed, and by then the blocks that this needed were taken. So the target moves
    just after that, and a take does not know for which key it is. Recently used: became free late.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.target = 0.0
        self._again: dict[int, bool] = {}
        """Whether a block with a key was used again: T2 of the paper; else T1."""
        self._sizes = [0, 0]
        """Blocks used once, and again."""
        self._free = (OrderedDict[int, None](), OrderedDict[int, None]())
        self._ghosts = (OrderedDict[int, None](), OrderedDict[int, None]())
        """Keys that were taken from either, the oldest first: B1 and B2."""

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
            self._place(key, key in self._again)  # one that is there is used again
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
        if not self._free[again]:  # sequences have them all
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
