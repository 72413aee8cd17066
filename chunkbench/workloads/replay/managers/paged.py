"""Paged memory as in vLLM 0.2.7: blocks on demand, reference counts, copy-on-write, no automatic sharing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chunkbench.attention.manager import AccountedManager, Accounts, LiveSequences, NeverFits, Reads
from chunkbench.attention.text import Text


@dataclass(slots=True)
class _Live:
    table: list[int]
    tokens: int
    total: int


class Paged(AccountedManager):
    """A sequence gets the blocks of its prompt when it is allocated. It gets a further block whenever its last one is
    full.

    Only forks share blocks. A fork copies a partial shared block before it appends to that block.

    `watermark`: share of all blocks that an allocation must leave free, so that running sequences can grow. A text that
    would need some of these blocks never fits. The reason: a sequence that is preempted near its end must be allocated
    again with nearly all its tokens.
    """

    _live: LiveSequences[_Live]

    def __init__(self, blocks: int, block_tokens: int = 16, watermark: float = 0.01) -> None:
        if blocks < 1 or block_tokens < 1 or not 0 <= watermark < 1:
            raise ValueError(f"{blocks} blocks of {block_tokens} tokens with a watermark of {watermark} are no memory")
        super().__init__(blocks * block_tokens, block_tokens)
        self.blocks = blocks
        self.copies = 0
        """Number of blocks that were copied on write so far."""
        self._kept = int(watermark * blocks)
        self._free = list(range(blocks - 1, -1, -1))
        self._references = [0] * blocks
        self._swapped: LiveSequences[_Live] = LiveSequences()
        """Sequences whose tokens are in host memory. Their block tables are invalid."""
        # Tokens in blocks with several references. A block's number of tokens changes only while it has one reference.
        self._shared = 0
        """Tokens in shared blocks, each counted once."""
        self._shared_covered = 0
        """Tokens in shared blocks, counted once for each reference."""

    @property
    def slots_held(self) -> int:
        return (self.blocks - len(self._free)) * self.block_tokens

    def table(self, sequence: int) -> Sequence[int]:
        return self._live[sequence].table

    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        self._check_new(sequence, text, known)
        table = self._admit(known, spare)
        if table is None:
            return None
        self._live[sequence] = _Live(table, known, text.total)
        return 0

    def give(self, sequences: Sequence[int], tokens: int) -> bool:
        """Give slots to sequences that grow. They may use the blocks that the watermark keeps free."""
        live, size = [self._live[sequence] for sequence in sequences], self.block_tokens
        new = [-(-(entry.tokens + tokens) // size) - len(entry.table) for entry in live]
        if sum(new) + self._copied(live) > len(self._free):
            return False
        for entry, blocks in zip(live, new, strict=True):
            in_last = entry.tokens % size
            if in_last and self._references[entry.table[-1]] > 1:
                copied = entry.table[-1]
                entry.table[-1:] = self._take(1)
                self._release(copied, in_last)
                self.copies += 1
            if blocks:
                entry.table += self._take(blocks)
            entry.tokens += tokens
        return True

    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        """Share all blocks of a sequence with its fork. Always returns True. Raises NeverFits."""
        source = self._live[sequence]
        self._check_new(twin, text, source.tokens)
        for block, tokens in self._filled(source):
            self._references[block] += 1
            first = self._references[block] == 2
            self._shared += tokens if first else 0
            self._shared_covered += 2 * tokens if first else tokens
        self._live[twin] = _Live(source.table.copy(), source.tokens, text.total)
        return True

    def free(self, sequence: int) -> None:
        """Free the blocks of a sequence, also of a sequence that is swapped out. Nothing is cached."""
        if self._swapped.pop(sequence, None) is None:
            self._free_table(self._live[sequence])
            del self._live[sequence]

    def swap_out(self, sequence: int) -> int:
        """Move all tokens of a sequence to host memory, which is unlimited. Returns the number of tokens.

        The sequence's blocks become free, except those that other sequences use. Until `swap_in`, only `free`,
        `preempt` and `swap_in` accept the sequence, and `accounts` does not count it. Afterwards it shares nothing.
        """
        entry = self._live[sequence]
        self._free_table(entry)
        self._swapped[sequence] = self._live.pop(sequence)
        return entry.tokens

    def swap_in(self, sequence: int) -> bool:
        """Move a sequence back into blocks. Returns False if there are too few free blocks, by the same rule as in
        `allocate`.
        """
        table = self._admit(self._swapped[sequence].tokens)
        if table is None:
            return False
        entry = self._live[sequence] = self._swapped.pop(sequence)
        entry.table = table
        return True

    def accounts(self) -> Accounts:
        """How the slots are used. A partial block that forks share counts as filled up to the longest fork."""
        covered = sum(entry.tokens for entry in self._live.values())
        used = covered - self._shared_covered + self._shared
        reserved: dict[int, int] = {}  # last block of a table -> tokens that will still come
        empty: dict[int, int] = {}
        for entry in self._live.values():
            last, end = entry.table[-1], len(entry.table) * self.block_tokens
            empty[last] = end - entry.tokens
            reserved[last] = max(reserved.get(last, 0), min(entry.total, end) - entry.tokens)
        return Accounts(
            used=used,
            reserved=sum(reserved.values()),
            internal_fragmentation=sum(empty.values()) - sum(reserved.values()),
            external_fragmentation=0,
            evictable=0,
            free=len(self._free) * self.block_tokens,
            covered=covered,
        )

    def reads(self) -> Reads:
        covered = sum(entry.tokens for entry in self._live.values())
        return Reads(covered - self._shared_covered, self._shared, self._shared_covered)

    def _check_new(self, sequence: int, text: Text, known: int) -> None:
        self._live.check_new(sequence, known)
        self._swapped.check_new(sequence)
        needed = -(-text.total // self.block_tokens)
        if needed + self._kept > self.blocks:
            raise NeverFits(f"{text.total} tokens need {needed} blocks; {self.blocks - self._kept} can be had")

    def _admit(self, tokens: int, spare: int = 0) -> list[int] | None:
        """Take free blocks for this number of tokens. None if fewer blocks than the watermark, or than `spare`, would
        stay free.
        """
        needed = -(-tokens // self.block_tokens)
        return self._take(needed) if needed + max(self._kept, spare) <= len(self._free) else None

    def _copied(self, live: list[_Live]) -> int:
        """Number of blocks to copy on write if each of these sequences gets tokens."""
        writers: Counter[int] = Counter()
        for entry in live:
            if entry.tokens % self.block_tokens and self._references[entry.table[-1]] > 1:
                writers[entry.table[-1]] += 1
        # If all sequences that share a block write, the last of them is alone and needs no copy.
        return sum(min(count, self._references[block] - 1) for block, count in writers.items())

    def _take(self, count: int) -> list[int]:
        """Take free blocks; each gets one reference."""
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _filled(self, entry: _Live) -> list[tuple[int, int]]:
        """(block, tokens in the block) for each block of a sequence."""
        size, last = self.block_tokens, len(entry.table) - 1
        in_last = entry.tokens - last * size
        return [(block, size if place < last else in_last) for place, block in enumerate(entry.table)]

    def _free_table(self, entry: _Live) -> None:
        for block, tokens in self._filled(entry):
            self._release(block, tokens)

    def _release(self, block: int, tokens: int) -> None:
        """Remove one reference from a block that holds this number of tokens."""
        self._references[block] -= 1
        left = self._references[block]
        if left == 0:
            self._free.append(block)
        elif left == 1:
            self._shared -= tokens
            self._shared_covered -= 2 * tokens
        else:
            self._shared_covered -= tokens
