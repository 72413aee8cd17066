"""Caches whose KV heads keep windows, against slow models: attention in float64, and which chunks windows lose."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chunkbench import ChunkAttention, LayeredChunkAttention
from chunkbench.attention import RaggedChunkAttention
from chunkbench.attention.errors import PoolExhausted, WrongTokens
from chunkbench.attention.heads import HeadStores
from chunkbench.attention.windows import Compress, HeadPolicy
from chunkbench.kernels.compensation import Compensation
from chunkbench.kernels.reference import attention, head_attention
from tests.attention.contexts import ACTIONS, KERNELS, Contexts, act_and_check, chunk_bytes
from tests.pairs import pairs

HEADS, KV_HEADS, DIM, CHUNK = 4, 2, 16, 16
FULL = ((True, False), (False, False), (True, True), (False, True))
"""Layers with one full head, none, two, and the other one."""


class HeadContexts(Contexts):
    """Knows what each head lost by the chunks that its store lacks."""

    def lost(self, sequence: int) -> slice:
        """Which tokens window heads lost: one run behind the sinks."""
        store = self.attention._store
        assert isinstance(store, HeadStores)
        lacking = np.flatnonzero(store.pool.places[self.attention._tree.path(sequence)] < 0)
        if not len(lacking):
            return slice(0, 0)
        first, end = int(lacking[0]), int(lacking[-1]) + 1
        assert (first >= 1, end - first) == (True, len(lacking))
        return slice(first * self.attention.chunk_size, end * self.attention.chunk_size)

    def expected(self, q: torch.Tensor, layer: int = 0) -> torch.Tensor:
        policy = self.attention.policy
        assert policy is not None
        rows = [
            head_attention(q[row], *self.kept(kv[layer]), policy.full[layer], self.lost(sequence), policy.compensation)
            for row, (sequence, kv) in enumerate(self.kv.items())
        ]
        return torch.stack(rows)

    def truncate(self, sequence: int, length: int) -> None:
        with contextlib.suppress(WrongTokens):  # the end may lie in what window heads lost
            super().truncate(sequence, length)

    def check(self, scale: float = 1.0, times: float = 1.0) -> None:
        super().check(scale, times)
        self.check_bytes()

    def check_bytes(self) -> None:
        """Bytes in the pools are those of whole chunks, less what window heads lost; sums of what they lost."""
        cache, policy = self.attention, self.attention.policy
        assert policy is not None
        places: dict[int, bool] = {}
        for sequence in self.tokens:
            lost = self.lost(sequence)
            path = enumerate(cache._tree.path(sequence))
            places |= {chunk: lost.start <= number * cache.chunk_size < lost.stop for number, chunk in path}
        heads = sum(map(sum, policy.full)), sum(map(len, policy.full))
        sums = 2 * cache.head_dim * 4 if policy.compensation != "none" else 0
        full, windows = heads[0] * len(places), (heads[1] - heads[0]) * sum(not lost for lost in places.values())
        lost_heads = (heads[1] - heads[0]) * sum(places.values())
        assert cache.kv_bytes == (full + windows) * chunk_bytes(cache) + lost_heads * sums


def contexts_of(
    kernel: Any = "torch",
    dtype: torch.dtype = torch.float32,
    compensation: Compensation = "weighted",
    compress: Compress = "own",
    retain: bool = False,
    window: int = 20,
    full: tuple[tuple[bool, ...], ...] = FULL,
) -> HeadContexts:
    policy = HeadPolicy(full, window, 4, compensation, compress)
    cache = LayeredChunkAttention(
        len(full), HEADS, DIM, KV_HEADS, CHUNK, dtype, kernel=kernel, retain=retain, policy=policy
    )
    return HeadContexts(cache)


@settings(max_examples=40)
@given(
    st.lists(ACTIONS, max_size=16),
    st.sampled_from(KERNELS),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from(["none", "mean", "weighted"]),
    st.sampled_from(["own", "all"]),
    st.booleans(),
    st.sampled_from([FULL, ((False, False),), ((True, True),)]),
)
# A fork leaves: what it shared lies before the run of lost chunks, and a retained chunk still parts the two.
@example(
    [
        ("append to", {0: 27}),
        ("fork", 0),
        ("append", 5, False),
        ("append to", {0: 24, 2: 10}),
        ("append", 4, False),
        ("remove", 2),
        ("append", 1, False),
    ],
    "torch",
    torch.float32,
    "mean",
    "own",
    True,
    ((False, False),),
)
def test_random_forests(
    history: list[tuple[Any, ...]],
    kernel: Any,
    dtype: torch.dtype,
    compensation: Compensation,
    compress: Compress,
    retain: bool,
    full: tuple[tuple[bool, ...], ...],
) -> None:
    contexts = contexts_of(kernel, dtype, compensation, compress, retain, 4, full)
    act_and_check(contexts, [("add", [0, 1] * 40, True), *history])


@pytest.mark.parametrize(
    ("kernel", "compensation", "dtype"), pairs(KERNELS, ["none", "mean", "weighted"], list(Contexts.tolerance))
)
def test_it_follows_its_definition(kernel: Any, compensation: Compensation, dtype: torch.dtype) -> None:
    """One sequence, token by token: `head_attention` knows lengths and windows only."""
    policy = HeadPolicy(((True, False),), 40, 4, compensation)
    cache = ChunkAttention(HEADS, DIM, KV_HEADS, CHUNK, dtype, kernel=kernel, policy=policy)
    contexts = Contexts(cache)
    sequence = contexts.add(range(90))
    tolerance = Contexts.tolerance[dtype]
    for _ in range(2 * CHUNK):
        contexts.step()
        q = contexts.normal(1, HEADS, DIM)
        k, v = contexts.kv[sequence][0]
        expected = head_attention(q[0], k, v, policy.full[0], policy.lost(len(k), CHUNK), compensation)
        assert (cache.decode(q)[0].double() - expected).abs().max() <= tolerance * expected.abs().max()
    assert cache._store.pool.places[cache._tree.path(sequence)].tolist().count(-1) == 3  # type: ignore[union-attr]


def test_lost_chunks_make_room_for_others() -> None:
    """A limit of bytes: window heads that lose chunks leave room for more sequences."""
    policy = HeadPolicy(((False, False),), 16, 4, "none")
    limited = LayeredChunkAttention(1, HEADS, DIM, KV_HEADS, CHUNK, max_tokens=16 * CHUNK, policy=policy)
    usual = LayeredChunkAttention(1, HEADS, DIM, KV_HEADS, CHUNK, max_tokens=16 * CHUNK)
    counts = []
    for cache in (limited, usual):
        with contextlib.suppress(PoolExhausted):
            for number in range(16):
                cache.compress([cache.join(range(1000 * number, 1000 * number + 7 * CHUNK)).sequence])
        counts.append(len(cache.sequences))
        assert cache.kv_bytes <= 16 * CHUNK * KV_HEADS * 2 * DIM * 4
    assert counts[0] > counts[1] == 2


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("compress", ["own", "all"])
def test_prompts_in_pieces_behind_a_compressed_prefix(kernel: Any, compress: Compress) -> None:
    """A suffix of several tokens attends to what window heads have left: like the same tokens one by one."""
    policy = HeadPolicy(FULL, 20, 4, "weighted", compress)
    generator = torch.Generator().manual_seed(1)
    shape = len(FULL), HEADS, DIM, KV_HEADS, CHUNK, torch.float32
    k, v = (torch.randn(len(FULL), 120, KV_HEADS, DIM, generator=generator) for _ in range(2))
    q = torch.randn(len(FULL), 8, HEADS, DIM, generator=generator)

    def outputs(pieces: list[int]) -> torch.Tensor:
        cache = RaggedChunkAttention(*shape, kernel=kernel, policy=policy)
        sequence = cache.join(range(112)).sequence
        cache.select(sequence, 0, 112)
        cache.plan_selected()
        for layer in range(len(FULL)):
            cache.write_selected(layer, k[layer, :112], v[layer, :112])
        cache.compress()
        found, first = [[] for _ in FULL], 112
        for count in pieces:
            cache.extend(range(first, first + count), [sequence], [count])
            cache.select(sequence, first, count, decoding=count == 1)
            cache.plan_selected()
            for layer in range(len(FULL)):
                cache.write_selected(layer, k[layer, first : first + count], v[layer, first : first + count])
                found[layer].append(cache.attend_selected(layer, q[layer, first - 112 : first - 112 + count]))
            first += count
        return torch.stack([torch.cat(parts) for parts in found])

    whole = outputs([8])
    assert torch.allclose(whole, outputs([1] * 8), atol=1e-5)
    assert not torch.allclose(
        whole[1],
        torch.stack([attention(q[1, i], k[1, : 113 + i], v[1, : 113 + i]) for i in range(8)]).float(),
        atol=1e-3,
    )


def test_a_policy_must_fit_the_cache() -> None:
    with pytest.raises(ValueError, match="the policy is for 4 layers of 2 KV heads; this model has 1 layers of 2"):
        ChunkAttention(HEADS, DIM, KV_HEADS, CHUNK, policy=HeadPolicy(FULL, 20))
    with pytest.raises(ValueError, match="needs a CPU, not meta"):
        ChunkAttention(HEADS, DIM, KV_HEADS, CHUNK, device="meta", kernel="torch", policy=HeadPolicy(FULL[:1], 20))
    for arguments, message in (((FULL, 0), "at least 1 token"), ((FULL, 8, -1), "cannot be negative")):
        with pytest.raises(ValueError, match=message):
            HeadPolicy(*arguments)


SMALL, WINDOW, MOST = 4, 10, 12
"""Tokens of a chunk and of a window, and sequences, of the histories that follow."""
ONE_FULL = ((True, False, False),)


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
            end = length // SMALL - -(-WINDOW // SMALL)
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
        head, sums = 2 * SMALL * DIM * 4, 2 * DIM * 4
        windows = (len(chunks) - len(self.lost)) * head + len(self.lost) * sums
        assert cache.kv_bytes == len(chunks) * head + 2 * windows
        assert store.bytes_in_use == cache.kv_bytes
        assert store.pool.windows.in_use == len(chunks) - len(self.lost)


def history(operations: int, compress: Compress, check_every: int) -> None:
    rng = random.Random(f"{compress} {operations}")
    cache = LayeredChunkAttention(
        1, 3, DIM, 3, SMALL, kernel="torch", policy=HeadPolicy(ONE_FULL, WINDOW, SMALL, "weighted", compress)
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
                slow.ends[cut] = min(slow.ends[cut], length // SMALL - -(-WINDOW // SMALL))
        elif action == "leave" or len(live) == MOST:
            cache.remove_sequence(rng.choice(live))
        if number % check_every == 0:
            slow.check()


def test_a_limit_that_fell_holds_for_sequences_that_grow() -> None:
    """What window heads lack makes room, as long as the sequence is there."""
    policy = HeadPolicy(ONE_FULL, WINDOW, SMALL)
    cache = LayeredChunkAttention(1, 3, DIM, 3, SMALL, kernel="torch", max_tokens=10 * SMALL, policy=policy)
    long = cache.join(range(8 * SMALL)).sequence
    cache.compress()
    for first in range(100, 104):
        cache.join([first] * SMALL)
    assert cache.live_chunks == 12
    cache.remove_sequence(long)
    cache.extend(range(4))
    with pytest.raises(PoolExhausted, match="4 more chunks are needed, but 8 of at most 10"):
        cache.extend([0] * 4 * SMALL, counts=[SMALL] * 4)


@pytest.mark.parametrize("compress", ["own", "all"])
def test_a_thousand_operations(compress: Compress) -> None:
    history(1_000, compress, 1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("compress", ["own", "all"])
def test_half_a_million_operations_each(compress: Compress) -> None:
    history(500_000, compress, 20)
