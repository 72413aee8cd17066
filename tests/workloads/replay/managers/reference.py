"""Slow, obvious models of the managers. They keep whole prefixes instead of keys, and count everything from scratch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chunkbench.attention.manager import Accounts, NeverFits, Reads
from chunkbench.attention.text import Text


@dataclass
class Known:
    """A live sequence."""

    text: Text
    tokens: int
    table: list[int] = field(default_factory=list)
    """Blocks, or the slots of a piece."""
    reservation: int = 0


POWERS = [1, 2, 4, 8, 16, 32, 64, 128]


def power(tokens: int) -> int:
    """The first power of two that is not below `tokens`; 0 for 0."""
    return next(size for size in [0, *POWERS] if size >= tokens)


class Slow:
    """What all models have in common: live sequences with tables of blocks, and a label for each slot of the memory."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks, self.block_tokens = blocks, block_tokens
        self.ids = range(blocks)
        self.live: dict[int, Known] = {}

    def held_blocks(self) -> set[int]:
        return {block for one in self.live.values() for block in one.table}

    def evictable(self) -> set[int]:
        """Free blocks that an allocation can find."""
        return set()

    def lost(self) -> set[int]:
        """Free blocks that the waiting sequence cannot get."""
        return set()

    @property
    def slots_held(self) -> int:
        return len(self.held_blocks()) * self.block_tokens

    def slots(self) -> Iterator[tuple[str, int]]:
        """For each slot of the memory: where it counts, and how many sequences have a token there."""
        evictable, lost = self.evictable(), self.lost()
        for block in self.ids:
            owners = [(one, one.table.index(block)) for one in self.live.values() if block in one.table]
            for offset in range(self.block_tokens):
                places = [(one, index * self.block_tokens + offset) for one, index in owners]
                readers = sum(place < one.tokens for one, place in places)
                if readers:
                    yield "used", readers
                elif any(place < one.text.total for one, place in places):
                    yield "reserved", 0
                elif any(one.reservation and place >= one.reservation for one, place in places) or block in lost:
                    yield "external_fragmentation", 0
                elif places:
                    yield "internal_fragmentation", 0
                else:
                    yield "evictable" if block in evictable else "free", 0

    def accounts(self) -> Accounts:
        labels = dict.fromkeys(
            ("used", "reserved", "internal_fragmentation", "external_fragmentation", "evictable", "free"), 0
        )
        for label, _ in self.slots():
            labels[label] += 1
        return Accounts(**labels, covered=sum(one.tokens for one in self.live.values()))

    def reads(self) -> Reads:
        counts = [readers for _, readers in self.slots()]
        return Reads(counts.count(1), sum(n > 1 for n in counts), sum(n for n in counts if n > 1))

    def cached(self, text: Text) -> int:
        return 0

    def computed_tokens(self, sequence: int) -> int:
        return 0

    def extend(self, sequence: int, tokens: int) -> bool:
        return True

    def free(self, sequence: int) -> None:
        del self.live[sequence]


class SlowContiguous(Slow):
    """Pieces of a buddy allocator: a free piece is a half of a half ... of a top piece, in which no slot is taken."""

    def __init__(self, capacity: int, reserve: str, max_length: int) -> None:
        super().__init__(capacity, 1)
        self.reserve, self.max_length = reserve, max_length
        self.refused = 0

    def free_pieces(self) -> list[tuple[int, int]]:
        """Size and first slot of each."""
        taken, found = self.held_blocks(), []

        def look(begin: int, size: int) -> None:
            if not taken & set(range(begin, begin + size)):
                found.append((size, begin))
            elif size > 1:
                look(begin, size // 2)
                look(begin + size // 2, size // 2)

        begin = 0
        for bit in f"{self.blocks:b}":
            size = 2 ** (len(f"{self.blocks - begin:b}") - 1)
            if bit == "1":
                look(begin, size)
                begin += size
        return found

    def lost(self) -> set[int]:
        small = [piece for piece in self.free_pieces() if piece[0] < self.refused]
        return {slot for size, begin in small for slot in range(begin, begin + size)}

    def reservation(self, text: Text) -> int:
        amounts = {
            "max": self.max_length,
            "pow2": min(self.max_length, text.prompt + power(text.total - text.prompt)),
            "exact": text.total,
        }
        tokens = amounts[self.reserve]
        if text.total > self.max_length or power(tokens) > max(size for size in POWERS if size <= self.blocks):
            raise NeverFits
        return tokens

    def add(self, sequence: int, text: Text, tokens: int) -> bool:
        size = power(self.reservation(text))
        enough = [piece for piece in self.free_pieces() if piece[0] >= size]
        if enough:
            begin = min(enough)[1]
            self.live[sequence] = Known(text, tokens, [*range(begin, begin + size)], self.reservation(text))
        return bool(enough)

    def allocate(self, sequence: int, text: Text, known: int) -> int | None:
        done = self.add(sequence, text, known)
        self.refused = 0 if done else self.reservation(text)
        return 0 if done else None

    def append(self, sequences: Sequence[int]) -> bool:
        if any(self.live[sequence].tokens == self.live[sequence].reservation for sequence in sequences):
            return False
        for sequence in sequences:
            self.live[sequence].tokens += 1
        return True

    def grow(self, sequence: int, tokens: int) -> bool:
        before = self.live[sequence].tokens
        done = all(self.append([sequence]) for _ in range(tokens))
        if not done:
            self.live[sequence].tokens = before
        return done

    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        return self.add(twin, text, self.live[sequence].tokens)


class SlowPaged(Slow):
    """Blocks from a set; a block is free if no table names it."""

    def __init__(self, blocks: int, block_tokens: int, watermark: float) -> None:
        super().__init__(blocks, block_tokens)
        self.kept = int(blocks * watermark)
        self.copies = 0
        self.swapped: dict[int, Known] = {}

    def free_blocks(self) -> list[int]:
        return sorted(set(self.ids) - self.held_blocks())

    def check_size(self, text: Text) -> None:
        if len(range(0, text.total, self.block_tokens)) > self.blocks - self.kept:
            raise NeverFits

    def admit(self, tokens: int) -> list[int] | None:
        needed = len(range(0, tokens, self.block_tokens))
        return self.free_blocks()[:needed] if len(self.free_blocks()) - needed >= self.kept else None

    def allocate(self, sequence: int, text: Text, known: int) -> int | None:
        self.check_size(text)
        table = self.admit(known)
        if table is None:
            return None
        self.live[sequence] = Known(text, known, table)
        return 0

    def append(self, sequences: Sequence[int]) -> bool:
        return self.add(sequences)

    def grow(self, sequence: int, tokens: int) -> bool:
        return self.add([sequence] * tokens)

    def add(self, sequences: Sequence[int]) -> bool:
        """One token for each, one after the other."""
        before, copies = {key: (one.tokens, [*one.table]) for key, one in self.live.items()}, self.copies
        for sequence in sequences:
            one = self.live[sequence]
            full = one.tokens == len(one.table) * self.block_tokens
            shared = sum(one.table[-1] in other.table for other in self.live.values()) > 1
            if full or shared:
                if not self.free_blocks():
                    for key, (tokens, table) in before.items():
                        self.live[key].tokens, self.live[key].table = tokens, table
                    self.copies = copies
                    return False
                block = self.free_blocks()[0]
                if not full:
                    one.table.pop()
                    self.copies += 1
                one.table.append(block)
            one.tokens += 1
        return True

    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        self.check_size(text)
        source = self.live[sequence]
        self.live[twin] = Known(text, source.tokens, [*source.table])
        return True

    def free(self, sequence: int) -> None:
        (self.swapped if sequence in self.swapped else self.live).pop(sequence)

    def swap_out(self, sequence: int) -> int:
        self.swapped[sequence] = self.live.pop(sequence)
        return self.swapped[sequence].tokens

    def swap_in(self, sequence: int) -> bool:
        table = self.admit(self.swapped[sequence].tokens)
        if table is None:
            return False
        self.live[sequence] = self.swapped.pop(sequence)
        self.live[sequence].table = table
        return True


class SlowHashed(Slow):
    """Blocks with names: a name is all tokens up to the block's end. Free blocks are a list, taken from its front."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        super().__init__(blocks, block_tokens)
        self.ids = range(1, blocks + 1)
        self.free_blocks: list[int] = [*self.ids]
        self.names: list[tuple[tuple[int, ...], int]] = []
        """Names and blocks, in the order in which they got them."""
        self.evictions = 0

    def evictable(self) -> set[int]:
        return {block for _, block in self.names if block in self.free_blocks}

    def check_size(self, text: Text) -> None:
        if text.total > self.blocks * self.block_tokens:
            raise NeverFits

    def hits(self, text: Text, known: int) -> list[int]:
        found: list[int] = []
        while (len(found) + 1) * self.block_tokens < known:
            name = tuple(text.tokens(0, (len(found) + 1) * self.block_tokens).tolist())
            blocks = [block for other, block in self.names if other == name]
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def cached(self, text: Text) -> int:
        return len(self.hits(text, text.prompt)) * self.block_tokens

    def allocate(self, sequence: int, text: Text, known: int) -> int | None:
        self.check_size(text)
        hits = self.hits(text, known)
        left = [block for block in self.free_blocks if block not in hits]
        if len(range(0, known, self.block_tokens)) - len(hits) > len(left):
            return None
        self.free_blocks = left
        tokens = len(hits) * self.block_tokens
        self.live[sequence] = Known(text, tokens, hits)
        return tokens

    def computed_tokens(self, sequence: int) -> int:
        return self.live[sequence].tokens

    def take(self) -> int:
        block = self.free_blocks.pop(0)
        named = [(name, other) for name, other in self.names if other != block]
        self.evictions += len(self.names) - len(named)
        self.names = named
        return block

    def add(self, one: Known) -> None:
        """One more token."""
        if one.tokens == len(one.table) * self.block_tokens:
            one.table.append(self.take())
        one.tokens += 1
        name = tuple(one.text.tokens(0, one.tokens).tolist())
        if one.tokens % self.block_tokens == 0 and len(name) == one.tokens:
            self.call(name, one.table[one.tokens // self.block_tokens - 1])

    def call(self, name: tuple[int, ...], block: int) -> None:
        self.names.append((name, block))

    def extend(self, sequence: int, tokens: int) -> bool:
        one = self.live[sequence]
        if len(range(0, tokens, self.block_tokens)) - len(one.table) > len(self.free_blocks):
            return False
        while one.tokens < tokens:
            self.add(one)
        return True

    def append(self, sequences: Sequence[int]) -> bool:
        ends = [one.tokens == len(one.table) * self.block_tokens for one in map(self.live.__getitem__, sequences)]
        if sum(ends) > len(self.free_blocks):
            return False
        for sequence in sequences:
            self.add(self.live[sequence])
        return True

    def grow(self, sequence: int, tokens: int) -> bool:
        one = self.live[sequence]
        missing = len(range(0, one.tokens + tokens, self.block_tokens)) - len(one.table)
        if missing > len(self.free_blocks):
            return False
        one.table += [self.take() for _ in range(missing)]
        return True

    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        self.check_size(text)
        source = self.live[sequence]
        table = source.table[: source.tokens // self.block_tokens]
        if len(table) < len(source.table):
            if not self.free_blocks:
                return False
            table.append(self.take())
        self.live[twin] = Known(text, source.tokens, table)
        return True

    def free(self, sequence: int) -> None:
        one = self.live.pop(sequence)
        left = [block for block in reversed(one.table) if block not in self.held_blocks()]
        named = [block for block in left if any(other == block for _, other in self.names)]
        self.free_blocks = [*(block for block in left if block not in named), *self.free_blocks, *named]


class SlowPolicy(SlowHashed):
    """The same with names that have one block each. It takes what a pool took, if the pool was allowed to."""

    def __init__(self, blocks: int, block_tokens: int, taken: deque[int]) -> None:
        super().__init__(blocks, block_tokens)
        self.taken = taken

    def take(self) -> int:
        block, evictable = self.taken.popleft(), self.evictable()
        nameless = [free for free in self.free_blocks if free not in evictable]
        assert block == nameless[0] if nameless else block in evictable
        self.free_blocks.remove(block)
        self.free_blocks.insert(0, block)
        return super().take()

    def call(self, name: tuple[int, ...], block: int) -> None:
        older = [other for named, other in self.names if named == name]
        if older and older[0] in self.free_blocks:
            self.names.remove((name, older[0]))
            self.free_blocks.remove(older[0])
            self.free_blocks.insert(0, older[0])
        if not older or older[0] in self.free_blocks:
            super().call(name, block)

    def extend(self, sequence: int, tokens: int) -> bool:
        """All blocks are taken before the first one gets its name."""
        one = self.live[sequence]
        return self.grow(sequence, tokens - one.tokens) and super().extend(sequence, tokens)

    def append(self, sequences: Sequence[int]) -> bool:
        ends = [
            one for one in map(self.live.__getitem__, sequences) if one.tokens == len(one.table) * self.block_tokens
        ]
        if len(ends) > len(self.free_blocks):
            return False
        for one in ends:
            one.table.append(self.take())
        return super().append(sequences)
