"""Which chunks window heads lose, and the bytes in use, against a slow model, over long random histories."""

from __future__ import annotations

import random

import pytest

from chunkbench import LayeredChunkAttention
from chunkbench.attention.errors import PoolExhausted, WrongTokens
from chunkbench.attention.heads import HeadStores
from chunkbench.attention.windows import Compress, HeadPolicy

CHUNK, WINDOW, DIM, MOST = 4, 10, 16, 12
FULL = ((True, False, False),)


class SlowWindows:
    """Knows the paths of the tree; finds by the definition what window heads lost, chunk by chunk."""

    def __init__(self, cache: LayeredChunkAttention, own: bool) -> None:
        self.cache, self.own = cache, own
        self.lost: set[int] = set()
        self.ends: dict[int, int] = {}

    def path(self, sequence: int) -> list[int]:
        return self.cache._tree.path(sequence)

    def begin(self, sequence: int, new: list[int], like: int | None = None) -> None:
        self.lost -= {*new}
        self.ends[sequence] = 0 if like is None else self.ends[like]

    def extended(self, before: dict[int, int], new: list[int]) -> None:
        """These sequences had so many tokens, and got more."""
        self.lost -= {*new}
        moved = False
        for sequence, length in before.items():
            end = length // CHUNK - -(-WINDOW // CHUNK)
            moved |= end > self.ends[sequence]
            self.ends[sequence] = max(self.ends[sequence], end)
        for sequence in self.cache.sequences if moved else ():
            self._lose(sequence)

    def _lose(self, sequence: int) -> None:
        path = self.path(sequence)
        run = [place for place, chunk in enumerate(path) if chunk in self.lost]
        if run:
            place = run[-1] + 1
        else:
            alone = [n for n, chunk in enumerate(path) if n >= 1 and (not self.own or len(self.covering(chunk)) == 1)]
            place = alone[0] if alone else len(path)
        while place < len(path):
            covering = self.covering(path[place])
            if (self.own and len(covering) > 1) or any(self.ends[other] <= place for other in covering):
                return
            self.lost.add(path[place])
            place += 1

    def covering(self, chunk: int) -> list[int]:
        return [sequence for sequence in self.cache.sequences if chunk in self.path(sequence)]

    def check(self) -> None:
        cache, store = self.cache, self.cache._store
        assert isinstance(store, HeadStores)
        chunks = {chunk for sequence in cache.sequences for chunk in self.path(sequence)}
        self.lost &= chunks
        assert {chunk for chunk in chunks if store.pool.places[chunk] < 0} == self.lost
        head, sums = 2 * CHUNK * DIM * 4, 2 * DIM * 4
        windows = (len(chunks) - len(self.lost)) * head + len(self.lost) * sums
        assert cache.kv_bytes == len(chunks) * head + 2 * windows
        assert store.bytes_in_use == cache.kv_bytes
        assert store.pool.windows.in_use == len(chunks) - len(self.lost)


def history(operations: int, compress: Compress, check_every: int) -> None:
    rng = random.Random(f"{compress} {operations}")
    cache = LayeredChunkAttention(
        1, 3, DIM, 3, CHUNK, kernel="torch", policy=HeadPolicy(FULL, WINDOW, CHUNK, "weighted", compress)
    )
    slow = SlowWindows(cache, compress == "own")
    texts = [[rng.randrange(50) for _ in range(60)] for _ in range(4)]
    for number in range(operations):
        live = cache.sequences
        action = rng.choice(("join", "append", "append", "append", "grow", "fork", "cut", "leave"))
        if not live or (action == "join" and len(live) < MOST):
            text = rng.choice(texts)[: rng.randrange(1, 60)] + [rng.randrange(50) for _ in range(rng.randrange(8))]
            joined = cache.join(text)
            slow.begin(joined.sequence, joined.chunks.tolist())
        elif action == "append":
            before = {sequence: cache.length(sequence) for sequence in live}
            slow.extended(before, cache.extend([rng.randrange(3) for _ in live]).new.tolist())
        elif action == "grow":
            some = rng.sample(live, rng.randrange(1, len(live) + 1))
            counts = [rng.randrange(1, 12) for _ in some]
            before = {sequence: cache.length(sequence) for sequence in some}
            slow.extended(before, cache.extend([1] * sum(counts), some, counts).new.tolist())
        elif action == "fork" and len(live) < MOST:
            source = rng.choice(live)
            forked = cache.fork(source)
            slow.begin(forked, [*({*slow.path(forked)} - {*slow.path(source)})], like=source)
        elif action == "cut":
            cut = rng.choice(live)
            known = {chunk for sequence in live for chunk in slow.path(sequence)}
            length = rng.randrange(1, cache.length(cut) + 1)
            try:
                cache.truncate(cut, length)
            except WrongTokens:
                assert slow.lost
            else:
                slow.lost -= {*slow.path(cut)} - known
                slow.ends[cut] = min(slow.ends[cut], length // CHUNK - -(-WINDOW // CHUNK))
        elif action == "leave" or len(live) == MOST:
            cache.remove_sequence(rng.choice(live))
        if number % check_every == 0:
            slow.check()


def test_a_limit_that_fell_holds_for_sequences_that_grow() -> None:
    """What window heads lack makes room, as long as the sequence is there."""
    policy = HeadPolicy(FULL, WINDOW, CHUNK)
    cache = LayeredChunkAttention(1, 3, DIM, 3, CHUNK, kernel="torch", max_tokens=10 * CHUNK, policy=policy)
    long = cache.join(range(8 * CHUNK)).sequence
    cache.compress()
    for first in range(100, 104):
        cache.join([first] * CHUNK)
    assert cache.live_chunks == 12
    cache.remove_sequence(long)
    cache.extend(range(4))
    with pytest.raises(PoolExhausted, match="4 more chunks are needed, but 8 of at most 10"):
        cache.extend([0] * 4 * CHUNK, counts=[CHUNK] * 4)


@pytest.mark.parametrize("compress", ["own", "all"])
def test_a_thousand_operations(compress: Compress) -> None:
    history(1_000, compress, 1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("compress", ["own", "all"])
def test_half_a_million_operations_each(compress: Compress) -> None:
    history(500_000, compress, 20)
