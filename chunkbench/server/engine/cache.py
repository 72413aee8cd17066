"""The engine's cache manager. A scheduler allocates, extends and frees sequences here. The manager also selects the
tokens that the next step computes."""

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
    """Id of the sequence in `RaggedChunkAttention`."""
    text: Text
    reached: int = 0
    """Number of leading tokens that are computed once the next step has ended."""


class Stopwatch:
    """Adds up the seconds spent inside `with` blocks. The blocks may not be nested."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began


class EngineCache(Manager):
    """A cache manager for the K and V of all layers.

    Tokens that get a slot are also selected for the next step. `plan` ends the selection.

    `tree` measures the seconds for managing prefixes. This work includes matching, adding, forking and removing
    sequences, appending tokens, evicting and keeping chunks, and finding which K and V are written. The work does not
    include selecting tokens, planning a step, writing K and V, and shortening answers.
    """

    _live: LiveSequences[_Live]

    def __init__(self, attention: RaggedChunkAttention, max_tokens: int) -> None:
        """`max_tokens`: number of tokens for which the cache has memory."""
        super().__init__(max_tokens, attention.chunk_size)
        self._attention = attention
        self.tree = Stopwatch()
        self.drafts: dict[int, list[int]] = {}
        """Tokens that the next `append` adds to sequences, in addition to their last token."""

    @property
    def slots_held(self) -> int:
        return self._attention.live_chunks * self.block_tokens

    def plan(self) -> None:
        """Plan the step that computes the selected tokens."""
        self._attention.plan_selected()

    def cached(self, text: Text) -> int:
        with self.tree:
            found = self._attention.cached_tokens(text.tokens(0, text.prompt))
        return min(found, text.prompt - 1)

    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        # A prompt that is computed again cannot read chunks that are full already: a row that ends inside sixteen
        # tokens reads K in the order that it has until the last of them comes. Windows may also have lost them.
        share = not (isinstance(text, GrowingText) and text.whole)
        try:
            with self.tree:
                joined = self._attention.join(text.tokens(0, known), spare, share)
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
        drafts = [self.drafts.get(sequence, []) for sequence in sequences]
        try:
            with self.tree:
                lengths = [self._attention.length(member.handle) for member in members]
                tokens = [int(m.text.tokens(n, n + 1)[0]) for m, n in zip(members, lengths, strict=True)]
                handles, added = [member.handle for member in members], [1 + len(draft) for draft in drafts]
                if any(drafts):
                    listed = [token for last, draft in zip(tokens, drafts, strict=True) for token in (last, *draft)]
                    self._attention.extend(listed, handles, added)
                else:
                    self._attention.extend(tokens, handles)
        except PoolExhausted:
            self.drafts = {}
            return self.append(sequences) if any(drafts) else False
        for member, length, count in zip(members, lengths, added, strict=True):
            self._attention.select(member.handle, length, count, decoding=True)
            member.reached = length + 1
        return True

    def settle(self, sequence: int, tokens: int) -> None:
        """After a draft: keep the first `tokens` tokens, which are right. Raises PoolExhausted as `truncate`."""
        member = self._live[sequence]
        if self._attention.length(member.handle) > tokens:
            self.truncate(sequence, tokens)
        member.reached = tokens

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
        """Add the sequence `twin` as a copy of `sequence`. `text`: the tokens of the new sequence. Returns False if
        the last chunk is partly filled and there is no memory for a copy of it."""
        source = self._live[sequence]
        try:
            with self.tree:
                handle = self._attention.fork(source.handle)
        except PoolExhausted:
            return False
        self._live[twin] = _Live(handle, text, source.reached)
        return True

    def truncate(self, sequence: int, tokens: int) -> None:
        """Keep K and V of only the first `tokens` tokens of a sequence.

        Raises PoolExhausted if there is no memory to copy a shared chunk, or if heads with a window have dropped a
        chunk that they would read again.
        """
        member = self._live[sequence]
        try:
            self._attention.truncate(member.handle, tokens)
        except WrongTokens as error:
            raise PoolExhausted(str(error)) from None
        member.reached = min(member.reached, tokens)

    def undo(self) -> None:
        """Mark the planned step as not computed. Its K and V do not count as written."""
        self._attention.undo_planned()

    def select_again(self, sequence: int, tokens: int) -> int:
        """After `undo`: select those of the first `tokens` tokens that have no K and V. Returns the position of the
        first selected token."""
        self._live[sequence].reached = 0
        first = min(self.computed_tokens(sequence), tokens - 1)
        self.extend(sequence, tokens)
        return first

    def forget(self, sequence: int) -> None:
        """Mark a sequence as failed, so that no later sequence uses its chunks."""
        self._attention.forget(self._live[sequence].handle)

    def free(self, sequence: int) -> None:
        with self.tree:
            self._attention.remove_sequence(self._live.pop(sequence).handle)
