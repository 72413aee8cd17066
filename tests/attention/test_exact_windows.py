"""Caches whose layers have exact windows, against attention in float64 that sees the window alone."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench import LayeredChunkAttention
from chunkbench.attention import RaggedChunkAttention
from chunkbench.attention.errors import WrongTokens
from chunkbench.attention.heads import HeadStores
from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels import cpu
from chunkbench.kernels.reference import attention
from tests.attention.contexts import ACTIONS, Contexts, act_and_check, chunk_bytes

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

HEADS, KV_HEADS, DIM, CHUNK = 4, 2, 16, 16


class WindowContexts(Contexts):
    """Knows which tokens each layer reads, and which chunks must be there."""

    def expected(self, q: torch.Tensor, layer: int = 0) -> torch.Tensor:
        policy = self.attention.policy
        first = 0 if policy is None or policy.full[layer][0] else -(policy.window or 0)
        kept = [self.kept(kv[layer])[:, first:] for kv in self.kv.values()]
        return torch.stack([attention(q[row], *kv, softcap=self.attention.softcap) for row, kv in enumerate(kept)])

    def truncate(self, sequence: int, length: int) -> None:
        with contextlib.suppress(WrongTokens):  # the window of the new end may be lost
            super().truncate(sequence, length)

    def check(self, scale: float = 1.0, times: float = 1.0) -> None:
        super().check(scale, times)
        cache, policy, store = self.attention, self.attention.policy, self.attention._store
        cache.compress()
        if policy is None or policy.window is None:
            return
        assert isinstance(store, HeadStores)
        needed, covered = set[int](), set[int]()
        for sequence, tokens in self.tokens.items():
            path = cache._tree.path(sequence)
            covered |= set(path)
            size = cache.chunk_size
            needed |= set(path[max(0, len(tokens) // size - -(-policy.window // size)) :])
        held = {chunk for chunk in covered if store.pool.places[chunk] >= 0}
        assert needed <= held
        full = sum(map(sum, policy.full))
        sizes = full * len(covered) + (cache.layers * cache.kv_heads - full) * len(held)
        assert cache.kv_bytes == sizes * chunk_bytes(cache)


@settings(max_examples=40)
@given(
    st.lists(ACTIONS, max_size=16),
    st.sampled_from([1, 15, 16, 17, 33]),
    st.sampled_from([(True, False), (False, True), None]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
)
def test_random_forests(
    history: list[tuple[Any, ...]], window: int, windowed: tuple[bool, ...] | None, softcap: float, retain: bool
) -> None:
    policy = None if windowed is None else HeadPolicy.of_layers(windowed, KV_HEADS, window)
    cache = LayeredChunkAttention(
        2, HEADS, DIM, KV_HEADS, CHUNK, kernel="native", retain=retain, policy=policy, softcap=softcap
    )
    act_and_check(WindowContexts(cache), [("add", [0, 1] * 40, True), *history])


def windowed_cache(layers: tuple[bool, ...], window: int, **options: Any) -> LayeredChunkAttention:
    return LayeredChunkAttention(
        len(layers),
        1,
        DIM,
        1,
        options.pop("chunk_size", CHUNK),
        policy=HeadPolicy.of_layers(layers, 1, window),
        **options,
    )


def test_gemma_3_keeps_a_fifth() -> None:
    """26 layers, windows of 512 tokens in 5 of 6: at 8,192 tokens 21% of the bytes of full layers."""
    layers = tuple((layer + 1) % 6 != 0 for layer in range(26))
    assert sum(layers) == 22
    cache = windowed_cache(layers, 512, chunk_size=64)
    sequence = cache.join(range(8191)).sequence
    whole = 26 * 8192 * 2 * DIM * 4
    assert cache.kv_bytes == whole
    cache.compress()
    cache.extend([1], [sequence])
    # The window, and the chunk in which the last token lies.
    assert cache.kv_bytes / whole == pytest.approx((4 + 22 * (512 + 64) / 8192) / 26)
    assert 0.205 < cache.kv_bytes / whole < 0.215


@pytest.mark.parametrize("retain", [False, True])
def test_only_prefixes_whose_windows_are_held_are_shared(retain: bool) -> None:
    cache = windowed_cache((True, False), 20, retain=retain)
    sequence = cache.join(range(160)).sequence
    cache.compress()
    for length, found in ((160, 160), (159, 0), (40, 0), (200, 160)):
        assert cache.cached_tokens(range(length)) == found
    # Another sequence computes a shorter prefix again. Both hold theirs, and what lies between is lost.
    twin = cache.join([*range(64), 500]).sequence
    assert cache.cached_tokens(range(70)) == 64
    assert cache.cached_tokens(range(160)) == 160
    cache.remove_sequence(twin)
    cache.extend(range(10), [sequence], [10])
    cache.truncate(sequence, 161)
    with pytest.raises(WrongTokens, match="window heads lost"):
        cache.truncate(sequence, 150)


def test_a_short_sequence_does_not_hold_what_a_long_one_lost() -> None:
    """A chunk goes as soon as no sequence needs it, also behind chunks that another one needs."""
    cache = windowed_cache((True,), 20)
    long = cache.join(range(64)).sequence
    cache.join([*range(64), 1])
    cache.extend(range(64, 400), [long], [336])
    cache.compress()
    store = cache._store
    assert isinstance(store, HeadStores)
    held = np.flatnonzero(store.pool.places[cache._tree.path(long)] >= 0)
    assert held.tolist() == [2, 3, 23, 24]


def test_exact_windows_are_what_they_are() -> None:
    with pytest.raises(ValueError, match="exact windows need window, sinks=0"):
        HeadPolicy(((False,),), 8, exact=True)
    with pytest.raises(ValueError, match="softcap must lie between 0 and 1000"):
        LayeredChunkAttention(1, 1, DIM, softcap=-1.0)


def test_sinks_that_cannot_be() -> None:
    for kernel, sinks, message in (
        ("native", torch.zeros(3), r"the shape \(4,\), not \(3,\)"),
        ("torch", torch.zeros(4), "native"),
    ):
        cache = RaggedChunkAttention(1, HEADS, DIM, KV_HEADS, CHUNK, kernel=kernel)
        cache.select(cache.join([1, 2]).sequence, 0, 2)
        cache.plan_selected()
        with pytest.raises(ValueError, match=message):
            cache.attend_selected(0, torch.zeros(2, HEADS, DIM), None, sinks)
