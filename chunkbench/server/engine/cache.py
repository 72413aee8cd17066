"""The engine's cache with the interface of a cache manager. A scheduler allocates, extends and frees sequences; the
cache also selects their tensors for the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from chunkbench.attention import RaggedChunkAttention
from chunkbench.attention.errors import PoolExhausted, WrongTokens
from chunkbench.attention.manager import LiveSequences, Manager
from chunkbench.attention.text import Text
from chunkbench.server.engine.request import GrowingText


@dataclass
class _Live:
    """A sequence in the cache."""

    handle: int
    """Id of the sequence in the cache of tensors."""
    text: Text
    reached: int = 0
    """Number of leading tokens that were selected for a step so far."""


class Stopwatch:
    """Adds up the seconds inside `with`. The blocks do not nest."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began


class EngineCache(Manager):
    """A cache manager with the tensors of all layers.

    Tokens that get a slot are also selected for the next step; `plan` ends the selection.

    `tree` adds up the seconds of the bookkeeping of prefixes: matching prompts; joins; finding how far K and V of a
    prompt are written; appending tokens, with the collection of their ids; evictions; removing sequences, and keeping
    their chunks; with window heads, also dropping chunks. `tree` leaves out selecting the rows of a step, the plan,
    writing K and V, and cuts of constrained answers, which may copy K and V.
    """

    _live: LiveSequences[_Live]

    def __init__(self, attention: RaggedChunkAttention, max_tokens: int) -> None:
        """`max_tokens`: number of tokens for whose K and V there is memory."""
        super().__init__(max_tokens, attention.chunk_size)
        self._attention = attention
        self.tree = Stopwatch()

    @property
    def slots_held(self) -> int:
        return self._attention.live_chunks * self.block_tokens

    def plan(self) -> None:
        """Plan a step with all tokens that were selected."""
        self._attention.plan_selected()

    def cached(self, text: Text) -> int:
        with self.tree:
            found = self._attention.cached_tokens(text.tokens(0, text.prompt))
        return min(found, text.prompt - 1)

    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        try:
            with self.tree:
                joined = self._attention.join(text.tokens(0, known), spare)
        except PoolExhausted:
            return None
        self._live[sequence] = _Live(joined.sequence, text)
        return min(self.computed_tokens(sequence), known - 1)

    def computed_tokens(self, sequence: int) -> int:
        member = self._live[sequence]
        if isinstance(member.text, GrowingText) and member.text.whole:
            return member.reached
        with self.tree:
            written = self._attention.written(member.handle)
        return max(member.reached, written)

    def extend(self, sequence: int, tokens: int) -> bool:
        # The sequence has had these chunks since the allocation.
        member = self._live[sequence]
        first = min(self.computed_tokens(sequence), tokens - 1)
        self._attention.select(member.handle, first, tokens - first)
        member.reached = tokens
        return True

    def append(self, sequences: Sequence[int]) -> bool:
        members = [self._live[sequence] for sequence in sequences]
        try:
            with self.tree:
                lengths = [self._attention.length(member.handle) for member in members]
                tokens = [int(m.text.tokens(n, n + 1)[0]) for m, n in zip(members, lengths, strict=True)]
                self._attention.extend(tokens, [member.handle for member in members])
        except PoolExhausted:
            return False
        for member, length in zip(members, lengths, strict=True):
            self._attention.select(member.handle, length, 1)
            member.reached = length + 1
        return True

    def grow(self, sequence: int, tokens: int) -> bool:
        member = self._live[sequence]
        try:
            with self.tree:
                length = self._attention.length(member.handle)
                self._attention.extend(member.text.tokens(length, length + tokens), [member.handle], [tokens])
        except PoolExhausted:
            return False
        return True

    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        """Add a sequence with the id `twin` and the computed tokens of another one. `text`: its own tokens. False if
        there is no room for a copy of a partial last chunk."""
        source = self._live[sequence]
        try:
            with self.tree:
                handle = self._attention.fork(source.handle)
        except PoolExhausted:
            return False
        self._live[twin] = _Live(handle, text, source.reached)
        return True

    def truncate(self, sequence: int, tokens: int) -> None:
        """Keep K and V of the first `tokens` tokens of a sequence. Raises PoolExhausted if a shared chunk must be
        copied and there is no room, or if window heads lost the new last chunk."""
        member = self._live[sequence]
        try:
            self._attention.truncate(member.handle, tokens)
        except WrongTokens as error:
            raise PoolExhausted(str(error)) from None
        member.reached = min(member.reached, tokens)

    def undo(self) -> None:
        """Declare that the planned step could not be computed, so that its K and V are not written."""
        self._attention.undo_planned()

    def select_again(self, sequence: int, tokens: int) -> int:
        """After `undo`, select again those of the first `tokens` tokens whose K and V are missing. Returns the position
        of the first selected token."""
        self._live[sequence].reached = 0
        first = min(self.computed_tokens(sequence), tokens - 1)
        self.extend(sequence, tokens)
        return first

    def forget(self, sequence: int) -> None:
        """Declare that a sequence failed, so that none of its chunks is kept for later sequences."""
        self._attention.forget(self._live[sequence].handle)

    def free(self, sequence: int) -> None:
        with self.tree:
            self._attention.remove_sequence(self._live.pop(sequence).handle)
