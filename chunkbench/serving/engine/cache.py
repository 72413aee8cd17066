"""The engine's cache as a scheduler sees it: sequences join, get slots and leave, and their tensors follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chunkbench.attention import RaggedChunkAttention
from chunkbench.kvcache import PoolExhausted
from chunkbench.kvcache.text import Text


@dataclass
class _Member:
    """A sequence in the cache."""

    handle: int
    """Its id there."""
    text: Text
    reached: int = 0
    """Leading tokens that were selected."""


class EngineCache:
    """A `chunkbench.kvcache.managers.manager.Manager` over the tensors of all layers.

    What gets a slot is selected for the next step, too: `plan` ends the choice.
    """

    def __init__(self, attention: RaggedChunkAttention, max_tokens: int) -> None:
        self._attention = attention
        self.block_tokens = attention.chunk_size
        self.capacity = max_tokens
        """Tokens whose K and V fit."""
        self._members: dict[int, _Member] = {}

    @property
    def slots_held(self) -> int:
        """Token slots of the chunks that live sequences cover."""
        return self._attention.live_chunks * self.block_tokens

    def plan(self) -> None:
        """Plan the step of everything that was selected."""
        self._attention.plan_selected()

    def cached(self, text: Text) -> int:
        """Leading tokens of the prompt that a join would find."""
        return min(self._attention.cached_tokens(text.tokens(0, text.prompt)), text.prompt - 1)

    def join(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        """Give a whole prompt its chunks. None if there are not enough."""
        try:
            joined = self._attention.join(text.tokens(0, known), spare)
        except PoolExhausted:
            return None
        self._members[sequence] = _Member(joined.sequence, text)
        return min(self.held(sequence), known - 1)

    def held(self, sequence: int) -> int:
        """Leading tokens whose K and V are written, or selected to be."""
        member = self._members[sequence]
        return max(member.reached, self._attention.written(member.handle))

    def reach(self, sequence: int, tokens: int) -> bool:
        """Select a prompt's tokens up to the first `tokens`. Their chunks are there since the join."""
        member = self._members[sequence]
        first = min(self.held(sequence), tokens - 1)
        self._attention.select(member.handle, first, tokens - first)
        member.reached = tokens
        return True

    def append(self, sequences: Sequence[int]) -> bool:
        """Give each sequence a slot for its last token, and select it."""
        members = [self._members[sequence] for sequence in sequences]
        lengths = [self._attention.length(member.handle) for member in members]
        tokens = [int(m.text.tokens(n, n + 1)[0]) for m, n in zip(members, lengths, strict=True)]
        try:
            self._attention.extend(tokens, [member.handle for member in members])
        except PoolExhausted:
            return False
        for member, length in zip(members, lengths, strict=True):
            self._attention.select(member.handle, length, 1)
            member.reached = length + 1
        return True

    def leave(self, sequence: int) -> None:
        """Remove a sequence. With retention, what was written stays for later ones."""
        self._attention.remove_sequence(self._members.pop(sequence).handle)

    preempt = leave
