"""LayeredChunkAttention against the float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench import ChunkAttention, LayeredChunkAttention
from chunkbench.attention import Kernel, WrongTensor
from chunkbench.attention.errors import KVCacheError, PoolExhausted, UnknownSequence, WrongTokens
from chunkbench.kernels import cpu
from tests.attention.contexts import ACTIONS, Contexts, act_and_check

LAYERS, HEADS, KV_HEADS, DIM = 3, 4, 2, 16
KERNELS: list[Kernel] = ["torch", *(["native"] if cpu.native() is not None else [])]  # type: ignore[list-item]


def contexts_of(kernel: Kernel, dtype: torch.dtype = torch.float32, retain: bool = False) -> Contexts:
    cache = LayeredChunkAttention(
        LAYERS, HEADS, DIM, KV_HEADS, chunk_size=16, dtype=dtype, kernel=kernel, retain=retain
    )
    return Contexts(cache)


@settings(max_examples=40)
@given(
    st.lists(ACTIONS, max_size=12),
    st.sampled_from(KERNELS),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.booleans(),
)
def test_random_forests(history: list[tuple[Any, ...]], kernel: Kernel, dtype: torch.dtype, retain: bool) -> None:
    """All layers of random forests, with one tree and one plan."""
    act_and_check(contexts_of(kernel, dtype, retain), history)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cut_inside_a_shared_chunk_leaves_the_others_theirs(kernel: Kernel, dtype: torch.dtype, retain: bool) -> None:
    contexts = contexts_of(kernel, dtype, retain)
    cut, _, alone = contexts.add(range(40)), contexts.add(range(45)), contexts.add(range(100, 140))
    for length in (35, 31, 27, 3):  # inside its own chunk, then inside shared ones; odd lengths lose a token's partner
        contexts.truncate(cut, length)
        contexts.truncate(alone, length)
        contexts.check()
        contexts.append_to({cut: 1, alone: 17})
        contexts.check()
    again = contexts.add(range(100, 150), with_cached_rows=False)
    assert contexts.attention.cached_tokens(range(100, 150)) == 48  # as `again` has them
    contexts.remove(again)
    assert contexts.attention.cached_tokens(range(100, 150)) == (48 if retain else 0)
    contexts.check()


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_layers_need_more_bytes_but_one_plan(kernel: Kernel) -> None:
    layered, single = (
        LayeredChunkAttention(LAYERS, HEADS, DIM, chunk_size=16, kernel=kernel),
        ChunkAttention(HEADS, DIM, chunk_size=16, kernel=kernel),
    )
    k = torch.randn(40, HEADS, DIM)
    joined = layered.join(range(40))
    for layer in range(LAYERS):
        layered.write(layer, joined, k, k)
        layered.attend(layer, torch.randn(1, HEADS, DIM))
    single.add_sequence(range(40), k, k)
    assert layered.kv_bytes == LAYERS * single.kv_bytes
    assert layered.plan_rebuilds == 1


def test_misuse_is_refused_and_changes_nothing() -> None:
    attention = LayeredChunkAttention(LAYERS, HEADS, DIM, KV_HEADS, chunk_size=16, max_tokens=64)
    joined = attention.join(range(40))
    k = torch.randn(40, KV_HEADS, DIM)
    for layer in (-1, LAYERS):
        with pytest.raises(WrongTensor, match="there is no layer"):
            attention.write(layer, joined, k, k)
        with pytest.raises(WrongTensor, match="there is no layer"):
            attention.attend(layer, torch.randn(1, HEADS, DIM))
    with pytest.raises(WrongTensor, match="k has shape"):
        attention.write(0, joined, k[:-1], k[:-1])
    refused: list[tuple[type[KVCacheError], tuple[object, ...]]] = [
        (UnknownSequence, ([1], [7])),
        (WrongTokens, ([1, 2], [joined.sequence])),
        (WrongTokens, ([1, 2], [joined.sequence], [1])),
        (WrongTokens, ([1, 2], [joined.sequence, joined.sequence])),
        (WrongTokens, ([], [joined.sequence], [0])),
        (PoolExhausted, ([1] * 30, [joined.sequence], [30])),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            attention.extend(*arguments)  # type: ignore[arg-type]
    assert attention.length(joined.sequence) == 40
    with pytest.raises(ValueError, match="layers must be at least 1"):
        LayeredChunkAttention(0, HEADS, DIM)
