"""Caches: a prefix tree, the K and V of its chunks, and the kernel that reads them. KV heads keep all tokens or a
window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chunkbench.attention.errors import WrongTokens
from chunkbench.attention.heads import Decode, HeadStores
from chunkbench.attention.tokens import Tokens
from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.changes import Append, Join
from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.integers import NOWHERE, Ints


class Cache:
    """A cache in which all KV heads keep all chunks. `LayeredChunkAttention` describes the operations."""

    def __init__(self, tree: PrefixTree, store: ChunkStore | HeadStores, kernel: Decode) -> None:
        self.tree = tree
        self.store = store
        self.kernel = kernel

    @property
    def kv_bytes(self) -> int:
        return self.tree.live_chunks * self.store.chunk_bytes

    @property
    def idle_kv_bytes(self) -> int:
        return (self.tree.pool.in_use - self.tree.live_chunks) * self.store.chunk_bytes

    def join(self, tokens: Tokens, spare: int, share: bool = True) -> Join:
        return self.tree.join(tokens, spare, share)

    def extend(self, tokens: Tokens, sequences: Sequence[int] | None, counts: Tokens | None) -> Append:
        return self.tree.append(tokens, sequences, counts)

    def fork(self, sequence: int) -> int:
        forked = self.tree.fork(sequence)
        if forked.copy is not None:
            self.store.copy(*forked.copy)
        return forked.sequence

    def truncate(self, sequence: int, length: int) -> None:
        copy = self.tree.truncate(sequence, length)
        if copy is not None:
            self.store.copy(*copy)

    def compress(self, sequences: Sequence[int] | None) -> None:
        """Does nothing, because no head loses tokens."""


class HeadCache(Cache):
    """A cache with window heads. They lose a chunk when it lies before the windows of all sequences that cover it."""

    store: HeadStores

    def __init__(self, tree: PrefixTree, store: HeadStores, kernel: Decode) -> None:
        super().__init__(tree, store, kernel)
        self._policy = store.policy
        self._ends: Ints = np.empty(0, np.int64)  # by slot: first chunk that the window still needs

    @property
    def kv_bytes(self) -> int:
        return self.store.bytes_of(self.tree.plan().chunks)

    @property
    def idle_kv_bytes(self) -> int:
        return self.store.bytes_in_use - self.kv_bytes

    def join(self, tokens: Tokens, spare: int, share: bool = True) -> Join:
        joined = super().join(tokens, spare, share)
        self._begin(joined.sequence, 0)
        return joined

    def extend(self, tokens: Tokens, sequences: Sequence[int] | None, counts: Tokens | None) -> Append:
        before = self._lengths(sequences)
        appended = super().extend(tokens, sequences, counts)
        self._leave_behind(sequences, before)
        return appended

    def fork(self, sequence: int) -> int:
        forked = super().fork(sequence)
        self._begin(forked, int(self._ends[self.tree.slot(sequence)]))
        return forked

    def truncate(self, sequence: int, length: int) -> None:
        chunk_size = self.tree.chunk_size
        end = int(self._policy.end_of_dropped(np.array([length]), chunk_size)[0])
        if 1 <= length < self.tree.length(sequence):
            last = (length - 1) // chunk_size
            needed = self.tree.path(sequence)[max(0, end) if self._policy.exact else last : last + 1]
            if (self.store.pool.places[needed] == NOWHERE).any():
                raise WrongTokens(
                    f"sequence {sequence} cannot be cut to {length} tokens: window heads lost the last ones"
                )
        super().truncate(sequence, length)
        # With fewer tokens the window begins earlier, so the sequence needs chunks that it did not need before.
        slot = self.tree.slot(sequence)
        self._ends[slot] = min(self._ends[slot], end)

    def compress(self, sequences: Sequence[int] | None) -> None:
        self._leave_behind(sequences, self._lengths(sequences))

    def _lengths(self, sequences: Sequence[int] | None) -> Ints:
        """Number of tokens of each of these sequences; by default of all live sequences, by row."""
        return self.tree.lengths if sequences is None else np.array([self.tree.length(one) for one in sequences])

    def _begin(self, sequence: int, end: int) -> None:
        slot = self.tree.slot(sequence)
        if slot >= len(self._ends):
            self._ends = np.append(self._ends, np.zeros(2 * slot + 16 - len(self._ends), np.int64))
        self._ends[slot] = end

    def _leave_behind(self, sequences: Sequence[int] | None, positions: Ints) -> None:
        """Drop the chunks that window heads no longer need because all further queries of each sequence are at its
        given position or later."""
        slots = self.tree.slots if sequences is None else np.array([self.tree.slot(one) for one in sequences])
        ends = self._policy.end_of_dropped(positions, self.tree.chunk_size)
        if (ends <= self._ends[slots]).all():
            return
        self._ends[slots] = np.maximum(self._ends[slots], ends)
        for chunk, before in self.store.pool.to_drop(self.tree.plan(), self._ends[self.tree.slots]):
            self.store.drop(chunk, before)
