"""The prefix tree as a cache manager: with live sequences only (as in the paper), or with retention
(RadixAttention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chunkbench.attention.errors import PoolExhausted
from chunkbench.attention.manager import AccountedManager, Accounts, LiveSequences, NeverFits, Reads
from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.text import Text
from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.integers import Ints

_MOST_LOOKED_UP = 4096


@dataclass
class _Live:
    handle: int
    """The sequence's id in the tree."""
    text: Text
    ids: Ints
    """All tokens of the sequence, the answer included as far as it is known."""
    length: int
    reached: int = 0
    """Number of leading tokens that were computed, or are in the current step."""


class PrefixManager(AccountedManager):
    """Sequences in a `PrefixTree` whose memory has a fixed number of chunks.

    An allocation gives a whole prompt its chunks at once. A later sequence may match chunks that are not computed yet.
    `computed_tokens` says how many tokens are computed. With `retain`, the full chunks of ended sequences stay until
    their memory is needed.
    """

    _live: LiveSequences[_Live]

    def __init__(self, chunks: int, chunk_size: int = 64, retain: bool = False) -> None:
        super().__init__(chunks * chunk_size, chunk_size)
        self.tree = PrefixTree(chunk_size, ChunkPool(chunks), retain=retain, deferred=True)
        self._chunks = chunks
        self._covered = 0  # sum of the tokens of all sequences
        # Keys of prompts by the identity of their text: a scheduler asks for the same texts at every step.
        self._looked_up: dict[int, tuple[Text, list[bytes]]] = {}

    @property
    def slots_held(self) -> int:
        return self.tree.live_chunks * self.block_tokens

    @property
    def evictions(self) -> int:
        return self.tree.evictable.evictions if self.tree.evictable else 0

    def table(self, sequence: int) -> Sequence[int]:
        return self.tree.path(self._live[sequence].handle)

    def cached(self, text: Text) -> int:
        known = self._looked_up.get(id(text))
        if known is None:
            if len(self._looked_up) >= _MOST_LOOKED_UP:
                self._looked_up.clear()
            known = self._looked_up[id(text)] = text, self.tree.keys(text.tokens(0, text.prompt))
        return min(self.tree.match_keys(known[1]), text.prompt - 1)

    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        self._live.check_new(sequence, known)
        needed = -(-text.total // self.block_tokens)
        if needed > self._chunks:
            raise NeverFits(f"{text.total} tokens need {needed} chunks; the memory has {self._chunks}")
        ids = text.tokens(0, text.total)
        try:
            joined = self.tree.join(ids[:known], spare)
        except PoolExhausted:
            return None
        self._live[sequence] = _Live(joined.sequence, text, ids, known)
        self._covered += known
        return min(self.computed_tokens(sequence), known - 1)

    def computed_tokens(self, sequence: int) -> int:
        member = self._live[sequence]
        return max(member.reached, self.tree.written_tokens(member.handle))

    def extend(self, sequence: int, tokens: int) -> bool:
        # The chunks have been there since the allocation.
        member = self._live[sequence]
        full = slice(member.reached // self.block_tokens, tokens // self.block_tokens)
        self.tree.mark_written(np.array(self.tree.path(member.handle)[full], np.int64))
        member.reached = max(member.reached, tokens)
        return True

    def append(self, sequences: Sequence[int]) -> bool:
        if not super().append(sequences):
            return False
        members = [self._live[sequence] for sequence in sequences]
        full = [member for member in members if member.length % self.block_tokens == 0]
        self.tree.mark_written(np.array([self.tree.path(member.handle)[-1] for member in full], np.int64))
        for member in members:
            member.reached = member.length
        return True

    def give(self, sequences: Sequence[int], tokens: int) -> bool:
        members = [self._live[sequence] for sequence in sequences]
        ids = [member.ids[place] for member in members for place in range(member.length, member.length + tokens)]
        handles = [member.handle for member in members]
        try:
            self.tree.append(np.array(ids, np.int64), handles, None if tokens == 1 else [tokens] * len(handles))
        except PoolExhausted:
            return False
        for member in members:
            member.length += tokens
        self._covered += tokens * len(members)
        return True

    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        """Share the full chunks of a sequence with its fork, and copy a partial last chunk."""
        source = self._live[sequence]
        self._live.check_new(twin)
        try:
            forked = self.tree.fork(source.handle)
        except PoolExhausted:
            return False
        self._live[twin] = _Live(forked.sequence, text, text.tokens(0, text.total), source.length, source.reached)
        self._covered += source.length
        return True

    def free(self, sequence: int) -> None:
        """Remove a sequence. With `retain`, its full computed chunks stay in the tree."""
        member = self._live[sequence]
        del self._live[sequence]
        self._covered -= member.length
        self.tree.leave(member.handle)

    def accounts(self) -> Accounts:
        size = self.block_tokens
        held = self.slots_held
        empty = reserved = 0
        for member in self._live.values():
            slots = -(-member.length // size) * size
            empty += slots - member.length
            reserved += max(0, min(member.text.total, slots) - member.length)
        evictable = self.tree.evictable.chunks * size if self.tree.evictable else 0
        return Accounts(
            used=held - empty,
            reserved=reserved,
            internal_fragmentation=empty - reserved,
            external_fragmentation=0,
            evictable=evictable,
            free=self.capacity - held - evictable,
            covered=self._covered,
        )

    def reads(self) -> Reads:
        chunks, covered = self.tree.shared_chunks()
        return Reads(
            self._covered - covered * self.block_tokens, chunks * self.block_tokens, covered * self.block_tokens
        )
