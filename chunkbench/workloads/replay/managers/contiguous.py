"""A cache manager with one contiguous piece of memory per sequence, as in servers before PagedAttention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chunkbench.attention.manager import AccountedManager, Accounts, LiveSequences, NeverFits, Reads
from chunkbench.attention.text import Text
from chunkbench.workloads.replay.managers.buddy import Buddy

Reserve = Literal["max", "pow2", "exact"]


@dataclass(slots=True)
class _Live:
    begin: int
    reservation: int
    tokens: int
    total: int


class Contiguous(AccountedManager):
    """Each sequence reserves all its slots when it is allocated. Nothing is shared, and a reservation never grows.

    `reserve` is the number of reserved tokens. "max": the length of the server's longest sequence. "pow2": the prompt,
    plus the answer's length rounded up to a power of two. "exact": prompt and answer, which a real server cannot know.
    A `Buddy` allocator rounds each reservation up to a power of two.
    """

    _live: LiveSequences[_Live]

    def __init__(self, capacity_tokens: int, reserve: Reserve, max_length: int) -> None:
        """`max_length`: tokens of the server's longest sequence. A longer text raises NeverFits."""
        if reserve not in ("max", "pow2", "exact"):
            raise ValueError(f'reserve is "max", "pow2" or "exact", not "{reserve}"')
        if max_length < 1:
            raise ValueError(f"the longest sequence has at least 1 token, not {max_length}")
        super().__init__(capacity_tokens, block_tokens=1)
        self.reserve = reserve
        self.max_length = max_length
        self._memory = Buddy(capacity_tokens)
        self._refused = 1
        """Slots of the last allocation if it was refused, else 1, the smallest piece."""

    @property
    def slots_held(self) -> int:
        return self.capacity - self._memory.free

    def reservation(self, text: Text) -> int:
        """Tokens that a sequence with this text reserves. Raises NeverFits."""
        if text.total > self.max_length:
            raise NeverFits(f"a text of {text.total} tokens: the longest sequence has {self.max_length}")
        tokens = self.max_length
        if self.reserve == "exact":
            tokens = text.total
        elif self.reserve == "pow2":
            answer = text.total - text.prompt
            tokens = min(tokens, text.prompt + (Buddy.piece(answer) if answer else 0))
        if Buddy.piece(tokens) > self._memory.largest:
            raise NeverFits(f"{tokens} tokens in one piece: the largest piece has {self._memory.largest}")
        return tokens

    def table(self, sequence: int) -> range:
        entry = self._live[sequence]
        return range(entry.begin, entry.begin + Buddy.piece(entry.reservation))

    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        # The size of the piece depends on the text alone: after a preemption it is the same.
        allocated = self._add(sequence, text, known)
        self._refused = 1 if allocated else self.reservation(text)
        return 0 if allocated else None

    def _add(self, sequence: int, text: Text, known: int) -> bool:
        self._live.check_new(sequence, known)
        reservation = self.reservation(text)
        begin = self._memory.take(reservation)
        if begin is None:
            return False
        self._live[sequence] = _Live(begin, reservation, known, text.total)
        return True

    def give(self, sequences: Sequence[int], tokens: int) -> bool:
        live = [self._live[sequence] for sequence in sequences]
        if any(entry.tokens + tokens > entry.reservation for entry in live):
            return False
        for entry in live:
            entry.tokens += tokens
        return True

    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        """Copy the tokens of a sequence into a new contiguous piece for its fork. Raises NeverFits."""
        return self._add(twin, text, self._live[sequence].tokens)

    def check_answers(self, text: Text, answers: int) -> None:
        """Raise NeverFits if the memory cannot hold a contiguous piece for each answer."""
        piece = Buddy.piece(self.reservation(text))
        if answers > self.capacity // piece:
            raise NeverFits(f"{answers} pieces of {piece} tokens: the memory has {self.capacity // piece}")

    def free(self, sequence: int) -> None:
        self._memory.give_back(self._live[sequence].begin)
        del self._live[sequence]

    def accounts(self) -> Accounts:
        """How the slots are used.

        External fragmentation is the number of slots that the allocator's rounding adds. If the last allocation was
        refused, the number includes the slots of free pieces that were too small for the refused sequence.
        """
        used = reserved = inside = 0
        for entry in self._live.values():
            used += entry.tokens
            reserved += max(0, entry.total - entry.tokens)
            inside += entry.reservation - max(entry.total, entry.tokens)
        too_small = self._memory.free_below(self._refused)
        rounding = self.slots_held - used - reserved - inside
        return Accounts(
            used=used,
            reserved=reserved,
            internal_fragmentation=inside,
            external_fragmentation=rounding + too_small,
            evictable=0,
            free=self._memory.free - too_small,
            covered=used,
        )

    def reads(self) -> Reads:
        return Reads(private=sum(entry.tokens for entry in self._live.values()), shared=0, shared_covered=0)
