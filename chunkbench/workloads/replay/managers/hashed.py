"""Paged memory with prefix caching by keys of full blocks, as in vLLM 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from chunkbench.attention.manager import AccountedManager, Accounts, LiveSequences, NeverFits, Reads
from chunkbench.attention.text import Text
from chunkbench.kernels.integers import Ints
from chunkbench.workloads.replay.managers.keyed_blocks import KeyedBlocks
from chunkbench.workloads.replay.managers.pools import Blocks


@dataclass(slots=True)
class _Live:
    table: list[int]
    tokens: int
    keys: Ints
    total: int


class HashedBlocks(AccountedManager):
    """A cache manager that gives each full block a key. An allocation finds blocks by their keys, also blocks of
    sequences that ended.

    Free blocks without a key are taken first. Then free blocks with a key are taken, least recently used first (see
    `KeyedBlocks`). When a sequence ends, it gives back its last block first. So its last block is also taken first.

    Several blocks may have one key. An allocation then finds the block that got the key first. A block gets its key
    when its last slot is given to a token. So sequences of the same step can share the block.

    With a `pool`, the pool's policy decides which block is taken, and a key has only one block (see `PolicyBlocks`).
    The pool must have `blocks` blocks.
    """

    _live: LiveSequences[_Live]

    def __init__(self, blocks: int, block_tokens: int = 16, pool: Blocks | None = None) -> None:
        if blocks < 1 or block_tokens < 1:
            raise ValueError(f"{blocks} blocks of {block_tokens} tokens are no memory")
        if pool is not None and pool.blocks != blocks:
            raise ValueError(f"the pool has {pool.blocks} blocks, not {blocks}")
        super().__init__(blocks * block_tokens, block_tokens)
        self.blocks = blocks
        self._pool: Blocks = pool or KeyedBlocks(blocks)
        self._covered = 0
        """Sum of the tokens of all live sequences."""

    @property
    def slots_held(self) -> int:
        return (self.blocks - self._pool.free) * self.block_tokens

    @property
    def evictions(self) -> int:
        return self._pool.evictions

    def table(self, sequence: int) -> Sequence[int]:
        """The blocks of a sequence, in order. Ids begin with 1."""
        return self._live[sequence].table

    def cached(self, text: Text) -> int:
        return len(self._hits(text.keys(self.block_tokens), text.prompt)) * self.block_tokens

    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        """Give the sequence the blocks that are found by key. Returns the number of tokens in these blocks.

        Returns None if too few blocks are free for all known tokens. The blocks for the remaining tokens are not
        reserved: the sequence takes them when it needs them. If a prompt is computed in parts, other sequences may take
        these blocks first.
        """
        self._live.check_new(sequence, known)
        self._check_size(text)
        keys = text.keys(self.block_tokens)
        hits = self._hits(keys, known)
        needed = -(-known // self.block_tokens) - len(hits) + spare
        # `free_among` takes time and is rarely needed.
        if needed > self._pool.free - len(hits) and needed > self._pool.free - self._pool.free_among(hits):
            return None
        self._pool.share(hits)
        tokens = len(hits) * self.block_tokens
        self._live[sequence] = _Live(hits, tokens, keys, text.total)
        self._covered += tokens
        return tokens

    def computed_tokens(self, sequence: int) -> int:
        return self._live[sequence].tokens

    def extend(self, sequence: int, tokens: int) -> bool:
        entry = self._live[sequence]
        if tokens <= entry.tokens:
            return True
        missing = -(-tokens // self.block_tokens) - len(entry.table)  # some blocks may already be there, from `give`
        if missing > self._pool.free:
            return False
        if missing > 0:
            entry.table += self._pool.take(missing)
        self._name(entry, entry.tokens // self.block_tokens, tokens // self.block_tokens)
        self._covered += tokens - entry.tokens
        entry.tokens = tokens
        return True

    def append(self, sequences: Sequence[int]) -> bool:
        # `give` is not used: a replay calls this for every token of an answer.
        live, size = self._live, self.block_tokens
        beginning: list[_Live] = []
        for sequence in sequences:
            entry = live[sequence]
            if entry.tokens == len(entry.table) * size:
                beginning.append(entry)
        if beginning:
            if len(beginning) > self._pool.free:
                return False
            for entry, block in zip(beginning, self._pool.take(len(beginning)), strict=True):
                entry.table.append(block)
        for sequence in sequences:
            entry = live[sequence]
            entry.tokens = tokens = entry.tokens + 1
            if tokens % size == 0:
                self._name(entry, tokens // size - 1, tokens // size)
        self._covered += len(sequences)
        return True

    def give(self, sequences: Sequence[int], tokens: int) -> bool:
        """Give each sequence slots for `tokens` further tokens. Empty slots of its last block are used first."""
        size, needed, beginning = self.block_tokens, 0, list[tuple[_Live, int]]()
        for sequence in sequences:
            entry = self._live[sequence]
            blocks = -(-(entry.tokens + tokens) // size) - len(entry.table)
            if blocks > 0:
                needed += blocks
                beginning.append((entry, blocks))
        if needed > self._pool.free:
            return False
        if beginning:
            taken = iter(self._pool.take(needed))
            for entry, blocks in beginning:
                entry.table += islice(taken, blocks)
        return True

    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        """Share the full blocks of a sequence with its fork, and copy a partial last block. Raises NeverFits."""
        source = self._live[sequence]
        self._live.check_new(twin)
        self._check_size(text)
        full = source.tokens // self.block_tokens
        partial = len(source.table) - full
        if partial > self._pool.free:
            return False
        table = source.table[:full]
        self._pool.share(table)
        self._live[twin] = _Live(
            table + self._pool.take(partial), source.tokens, text.keys(self.block_tokens), text.total
        )
        self._covered += source.tokens
        return True

    def free(self, sequence: int) -> None:
        """Give back the blocks of a sequence. Full blocks keep their keys until they are taken."""
        entry = self._live[sequence]
        del self._live[sequence]
        self._pool.give_back(entry.table[::-1])
        self._covered -= entry.tokens

    def accounts(self) -> Accounts:
        size, pool = self.block_tokens, self._pool
        reserved = inside = 0
        for entry in self._live.values():
            end = len(entry.table) * size
            later = max(0, min(entry.total, end) - entry.tokens)
            reserved += later
            inside += end - entry.tokens - later
        return Accounts(
            used=self._covered - (pool.shared_references - pool.shared) * size,
            reserved=reserved,
            internal_fragmentation=inside,
            external_fragmentation=0,
            evictable=pool.evictable * size,
            free=(pool.free - pool.evictable) * size,
            covered=self._covered,
        )

    def reads(self) -> Reads:
        # Only full blocks have several references.
        shared_covered = self._pool.shared_references * self.block_tokens
        return Reads(self._covered - shared_covered, self._pool.shared * self.block_tokens, shared_covered)

    def _check_size(self, text: Text) -> None:
        if text.total > self.capacity:
            raise NeverFits(f"{text.total} tokens need more than the {self.blocks} blocks of {self.block_tokens}")

    def _hits(self, keys: Ints, known: int) -> list[int]:
        """The blocks that an allocation finds by key. The block with the last known token is never among them, because
        that token must be computed.
        """
        return self._pool.find(keys[: (known - 1) // self.block_tokens])

    def _name(self, entry: _Live, first: int, last: int) -> None:
        """Give keys to the blocks `first` to `last - 1` of a sequence. Blocks beyond the known text get none."""
        last = min(last, len(entry.keys))
        if first < last:
            before = entry.table[first - 1] if first else None
            self._pool.name(before, entry.table[first:last], entry.keys[first:last])
