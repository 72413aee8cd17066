"""ChunkAttention and LayeredChunkAttention against the float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench import ChunkAttention, LayeredChunkAttention
from chunkbench.attention import Kernel, WrongTensor
from chunkbench.attention.errors import EmptySequence, KVCacheError, PoolExhausted, UnknownSequence, WrongTokens
from chunkbench.kernels.reference import attention
from chunkbench.kv_dtype import KV_DTYPES, KvDtype
from tests.attention.contexts import ACTIONS, KERNELS, TOLERANCE, Contexts, act_and_check
from tests.pairs import pairs

PARTITIONS = ("two-phase", "sequence-first")
LAYERS, HEADS, KV_HEADS, DIM = 3, 4, 2, 16


def contexts_of(heads=4, head_dim=16, kv_heads=None, scale=1.0, **options):
    return Contexts(ChunkAttention(heads, head_dim, kv_heads, **options), scale)


def layers_of(kernel: Kernel, dtype: torch.dtype, retain: bool, kv_dtype: KvDtype = "same") -> Contexts:
    options: dict[str, Any] = {"dtype": dtype, "kernel": kernel, "retain": retain, "kv_dtype": kv_dtype}
    return Contexts(LayeredChunkAttention(LAYERS, HEADS, DIM, KV_HEADS, chunk_size=16, **options))


@settings(max_examples=60)
@given(
    st.lists(ACTIONS, max_size=14),
    st.integers(1, 5),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.sampled_from(PARTITIONS),
    st.booleans(),
)
def test_random_forests(history, chunk_size, heads, partition, reserved):
    contexts = contexts_of(heads[0], 16, heads[1], chunk_size=chunk_size, partition=partition)
    if reserved:
        contexts.attention.reserve(200)
    act_and_check(contexts, history)


@settings(max_examples=40)
@given(
    st.lists(ACTIONS, max_size=12),
    st.sampled_from(KERNELS),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.booleans(),
    st.sampled_from(KV_DTYPES),
)
def test_random_forests_of_several_layers(
    history: list[tuple[Any, ...]], kernel: Kernel, dtype: torch.dtype, retain: bool, kv_dtype: KvDtype
) -> None:
    """All layers, with one tree and one plan."""
    act_and_check(layers_of(kernel, dtype, retain, kv_dtype), history)


@pytest.mark.parametrize(
    ("shared", "dtype", "partition", "head_dim"),
    pairs([0, 7, 16, 24], list(TOLERANCE), PARTITIONS, [16, 48, 64, 80, 128, 256]),
)
def test_a_batch_with_a_system_prompt(shared, dtype, partition, head_dim):
    contexts = contexts_of(4, head_dim, 2, chunk_size=8, dtype=dtype, partition=partition)
    for row in range(5):
        contexts.add([*range(shared), *([1000 + row] * (24 - shared))])
    contexts.check()
    for step in range(18):  # across two chunk boundaries
        contexts.append([step] * 5)
        if step % 4 == 0 or step > 14:
            contexts.check()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_very_large_scores_do_not_overflow(partition):
    contexts = contexts_of(head_dim=64, chunk_size=8, scale=100.0, partition=partition)  # scores around 1e4 * 8
    for row in range(4):
        contexts.add([*range(16), *range(100 * row, 100 * row + 13)])
    contexts.append([1, 2, 3, 4])
    contexts.check()


def test_a_chunk_whose_scores_are_all_minus_infinity_has_zero_weight():
    instance = ChunkAttention(1, 16, chunk_size=2)
    for own in (5, 6):
        k, v = torch.randn(6, 1, 16), torch.randn(6, 1, 16)
        k[:2, 0, 0] = -torch.inf
        if own == 5:
            first = k, v
        k[:2], v[:2] = first[0][:2], first[1][:2]
        instance.add_sequence([1, 2, own, own, own, own], k, v)
        last = k, v
    q = torch.rand(2, 1, 16) + 0.1
    expected = torch.stack([attention(q[0], *first), attention(q[1], *last)])
    torch.testing.assert_close(instance.decode(q).double(), expected, rtol=1e-5, atol=1e-5)


def test_stale_values_of_a_removed_sequence_reach_no_other_sequence():
    contexts = contexts_of(chunk_size=4)
    kept = contexts.add(range(6))
    nans = torch.full((7, 4, 16), torch.nan)
    removed = contexts.attention.add_sequence([9] * 7, nans, nans)
    contexts.attention.remove_sequence(removed)
    contexts.add([8] * 5)  # reuses a full chunk and a partial one
    contexts.check()
    for step in range(5):
        contexts.append([step, step])
        contexts.check()
    contexts.attention.append([1, 1], nans[:2], nans[:2])
    for sequence in list(contexts.tokens):
        contexts.attention.truncate(sequence, len(contexts.tokens[sequence]))
    contexts.check()
    assert contexts.attention.length(kept) == 11


def test_kv_bytes_counts_each_chunk_of_each_layer_in_full_and_once():
    instance = LayeredChunkAttention(LAYERS, 4, 16, 2, chunk_size=8, dtype=torch.bfloat16)
    for chunks in (3, 4):
        instance.join(range(17))
        assert instance.kv_bytes == chunks * LAYERS * 2 * 8 * 2 * 16 * 2


def test_tensors_that_require_gradients_leave_no_graph():
    instance = ChunkAttention(1, 16, chunk_size=2)
    k = torch.randn(3, 1, 16, requires_grad=True)
    instance.add_sequence([1, 2, 3], k, k)
    q = torch.randn(1, 1, 16, requires_grad=True)
    assert not instance.decode(q).requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 3, "kv_heads": 2},
        {"heads": 0},
        {"head_dim": 24},
        {"head_dim": 0},
        {"dtype": torch.float64},
        {"dtype": torch.int8},
        {"chunk_size": 0},
        {"max_tokens": 0},
        {"partition": "chunk-first"},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError):  # noqa: PT011 - nine messages, one type
        ChunkAttention(**{"heads": 4, "head_dim": 16, **options})


def observe(instance, q):
    return instance.sequences, instance.kv_bytes, instance.decode(q), instance.cached_tokens([0, 1, 2, 3, 4, 5])


K = torch.zeros


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: a.add_sequence([], K(0, 2, 16), K(0, 2, 16)), EmptySequence, "at least one token"),
        (lambda a: a.add_sequence([1.5], K(1, 2, 16), K(1, 2, 16)), WrongTokens, "integers"),
        (lambda a: a.add_sequence(["a"], K(1, 2, 16), K(1, 2, 16)), WrongTokens, "integers"),
        (lambda a: a.add_sequence([[7, 8]], K(1, 2, 16), K(1, 2, 16)), WrongTokens, "flat list"),
        (lambda a: a.add_sequence([[7], [7, 8]], K(1, 2, 16), K(1, 2, 16)), WrongTokens, "flat list"),
        (lambda a: a.add_sequence([7, 8], K(3, 2, 16), K(3, 2, 16)), KVCacheError, "3 rows for 2 tokens: it needs 2"),
        (
            lambda a: a.add_sequence([0, 1, 2, 3, 9], K(2, 2, 16), K(2, 2, 16)),
            KVCacheError,
            "it needs 5 rows, or 1 for the tokens not cached",
        ),
        (lambda a: a.add_sequence([7], K(1, 4, 16), K(1, 4, 16)), KVCacheError, r"k has shape \(1, 4, 16\)"),
        (lambda a: a.add_sequence([7], K(1, 2, 16), K(2, 2, 16)), KVCacheError, r"v has shape \(2, 2, 16\)"),
        (lambda a: a.add_sequence([7], K(1, 32), K(1, 32)), KVCacheError, "k has shape"),
        (lambda a: a.add_sequence([7], K(1, 2, 16).half(), K(1, 2, 16)), KVCacheError, "k is torch.float16"),
        (lambda a: a.add_sequence([7], K(1, 2, 16), K(1, 2, 16, device="meta")), KVCacheError, "v is on meta"),
        (lambda a: a.add_sequence(range(50, 80), K(30, 2, 16), K(30, 2, 16)), PoolExhausted, "at most 4"),
        (lambda a: a.append([1], K(1, 2, 16), K(1, 2, 16)), WrongTokens, "1 tokens for 2 live sequences"),
        (lambda a: a.append([1, 2], K(1, 2, 16), K(2, 2, 16)), KVCacheError, "k has shape"),
        (lambda a: a.append([1, 2], K(2, 2, 16), K(2, 2, 16).double()), KVCacheError, "v is torch.float64"),
        (lambda a: a.remove_sequence(9), UnknownSequence, "no sequence 9"),
        (lambda a: a.remove_sequence(0), UnknownSequence, "0 has left"),
        (lambda a: a.fork(0), UnknownSequence, "0 has left"),
        (lambda a: a.truncate(1, 0), EmptySequence, "a sequence needs at least one"),
        (lambda a: a.truncate(1, 99), WrongTokens, "fewer than 99"),
        (lambda a: a.length(0), UnknownSequence, "0 has left"),
        (lambda a: a.reserve(17), PoolExhausted, "may hold 4"),
        (lambda a: a.decode(K(3, 2, 16)), KVCacheError, r"q has shape \(3, 2, 16\), not \(2, 2, 16\)"),
        (lambda a: a.decode(K(2, 2, 16).half()), KVCacheError, "q is torch.float16"),
        (lambda a: a.decode(K(2, 2, 16), K(2, 2, 8)), KVCacheError, "out has shape"),
        (lambda a: a.decode(K(2, 2, 16), K(2, 2, 16).half()), KVCacheError, "out is torch.float16"),
        (lambda a: a.decode(K(2, 2, 16), K(1, 2, 16).expand(2, 2, 16)), KVCacheError, "expanded"),
        (lambda a: a.decode(K(2, 2, 16), K(2, 2, 16, requires_grad=True)), KVCacheError, "gradients"),
    ],
)
def test_misuse_is_refused_before_anything_changes(call, error, message):
    torch.manual_seed(0)
    instance = ChunkAttention(2, 16, chunk_size=4, max_tokens=16)
    k = torch.randn(6, 2, 16)
    removed = instance.add_sequence([9, 9], k[:2], k[:2])
    instance.remove_sequence(removed)
    instance.add_sequence([0, 1, 2, 3, 4, 5], k, k)
    instance.add_sequence([0, 1, 2, 3, 6, 7], k, k)
    q = torch.randn(2, 2, 16)
    before = observe(instance, q)
    with pytest.raises(error, match=message):
        call(instance)
    after = observe(instance, q)
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    assert before[3] == after[3]


def test_misuse_of_layers_is_refused_and_changes_nothing() -> None:
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
        (PoolExhausted, ([1] * 30, [joined.sequence], [30])),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            attention.extend(*arguments)  # type: ignore[arg-type]
    assert attention.length(joined.sequence) == 40
    with pytest.raises(ValueError, match="layers must be at least 1"):
        LayeredChunkAttention(0, HEADS, DIM)


@pytest.mark.parametrize("chunk_size", [4, 16])  # the native kernel takes multiples of 16
def test_out_may_have_any_strides_and_may_be_q(chunk_size):
    contexts = contexts_of(chunk_size=chunk_size)
    contexts.add(range(6))
    contexts.add(range(3))
    q = contexts.normal(2, 4, 16)
    expected = contexts.attention.decode(q)
    wide = torch.full((16, 8, 2), 7.0).permute(2, 1, 0)
    contexts.attention.decode(q.transpose(0, 1).contiguous().transpose(0, 1), wide[:, ::2])
    assert torch.equal(wide[:, ::2], expected)
    assert (wide[:, 1::2] == 7.0).all()
    contexts.attention.decode(q, q)
    assert torch.equal(q, expected)


def test_a_failed_allocation_leaves_the_cache_unchanged(monkeypatch):
    contexts = contexts_of(chunk_size=4)
    contexts.add(range(6))
    before = contexts.attention.kv_bytes
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", lambda *_, **__: (_ for _ in ()).throw(MemoryError("no room")))
        with pytest.raises(MemoryError):
            contexts.attention.add_sequence(range(90, 130), torch.zeros(40, 4, 16), torch.zeros(40, 4, 16))
    assert contexts.attention.kv_bytes == before
    assert contexts.attention.cached_tokens(range(90, 130)) == 0
    contexts.append([1])
    contexts.check()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_on_a_gpu(dtype):
    contexts = contexts_of(8, 64, 2, chunk_size=16, dtype=dtype, device="cuda")
    for row in range(4):
        contexts.add([*range(32), *[row] * 18])
    contexts.append([1] * 4)
    contexts.check()


def test_names_are_found_where_they_were() -> None:
    from chunkbench import attention, kvcache

    with pytest.warns(DeprecationWarning, match="import HeadPolicy from chunkbench.attention"):
        assert kvcache.HeadPolicy is attention.HeadPolicy
    with pytest.raises(ImportError):
        from chunkbench.kvcache import nothing  # noqa: F401
