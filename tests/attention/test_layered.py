"""LayeredChunkAttention against the float64 reference: all layers of random forests, with one tree and one plan."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench import ChunkAttention, LayeredChunkAttention
from chunkbench.attention import Kernel, WrongTensor
from chunkbench.kernels import cpu
from chunkbench.kernels.reference import attention
from chunkbench.kvcache import KVCacheError, PoolExhausted, SharedChunk, UnknownSequence, WrongTokens

LAYERS, HEADS, KV_HEADS, DIM = 3, 4, 2, 16
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
KERNELS: list[Kernel] = ["torch", *(["native"] if cpu.native() is not None else [])]  # type: ignore[list-item]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread: with tiny tensors on a busy machine, threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Model:
    """Uses the class as a model with random layers does. The token ids up to a token determine its K and V."""

    def __init__(self, kernel: Kernel, chunk_size: int, dtype: torch.dtype = torch.float32) -> None:
        self.attention = LayeredChunkAttention(
            LAYERS, HEADS, DIM, KV_HEADS, chunk_size=chunk_size, dtype=dtype, kernel=kernel
        )
        self.contexts: dict[int, list[int]] = {}
        self._kv_of_prefix: dict[tuple[int, ...], torch.Tensor] = {}
        self._random = torch.Generator().manual_seed(0)

    def join(self, tokens: list[int]) -> None:
        joined = self.attention.join(tokens)
        assert joined.tokens == len(tokens) - joined.cached
        self.contexts[joined.sequence] = list(tokens)
        kv = self._kv(tokens)
        for layer in reversed(range(LAYERS)):  # the order of layers does not matter
            self.attention.write(layer, joined, kv[layer, 0, joined.cached :], kv[layer, 1, joined.cached :])

    def extend(self, counts: dict[int, int]) -> None:
        lists = [[len(self.contexts[sequence]) % 2] * count for sequence, count in counts.items()]
        flat = [token for tokens in lists for token in tokens]
        extended = self.attention.extend(flat, list(counts), list(counts.values()))
        kv = []
        for sequence, tokens in zip(counts, lists, strict=True):
            self.contexts[sequence] += tokens
            kv.append(self._kv(self.contexts[sequence])[:, :, len(self.contexts[sequence]) - len(tokens) :])
        together = torch.cat(kv, 2)
        for layer in range(LAYERS):
            self.attention.write(layer, extended, together[layer, 0], together[layer, 1])

    def step(self) -> None:
        tokens = [len(context) % 2 for context in self.contexts.values()]
        extended = self.attention.extend(tokens)
        for context, token in zip(self.contexts.values(), tokens, strict=True):
            context.append(token)
        kv = torch.cat([self._kv(context)[:, :, -1:] for context in self.contexts.values()], 2)
        for layer in range(LAYERS):
            self.attention.write(layer, extended, kv[layer, 0], kv[layer, 1])

    def check(self) -> None:
        assert self.attention.sequences == list(self.contexts)
        for layer in range(LAYERS):
            q = torch.randn(len(self.contexts), HEADS, DIM, generator=self._random).to(self.attention.dtype)
            out = self.attention.attend(layer, q)
            kv = [self._kv(context)[layer] for context in self.contexts.values()]
            expected = torch.stack([attention(q[row], k, v) for row, (k, v) in enumerate(kv)])
            error = (out.double() - expected).abs().max() / expected.abs().max()
            assert error <= TOLERANCE[self.attention.dtype], f"layer {layer}: relative error {error}"

    def _kv(self, tokens: list[int]) -> torch.Tensor:
        """K and V `[layers, 2, n, kv_heads, d]` of a sequence."""
        for n in range(1, len(tokens) + 1):
            prefix = tuple(tokens[:n])
            if prefix not in self._kv_of_prefix:
                drawn = torch.randn(LAYERS, 2, KV_HEADS, DIM, generator=self._random)
                self._kv_of_prefix[prefix] = drawn.to(self.attention.dtype)
        return torch.stack([self._kv_of_prefix[tuple(tokens[:n])] for n in range(1, len(tokens) + 1)], 2)


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=40)
actions = st.one_of(
    st.tuples(st.just("join"), prompts),
    st.tuples(st.just("join like"), st.integers(0, 9), prompts),
    st.tuples(st.just("extend"), st.dictionaries(st.integers(0, 9), st.integers(1, 40), min_size=1, max_size=3)),
    st.tuples(st.just("step")),
    st.tuples(st.just("fork"), st.integers(0, 9)),
    st.tuples(st.just("truncate"), st.integers(0, 9), st.floats(0, 1)),
    st.tuples(st.just("remove"), st.integers(0, 9)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(actions, max_size=12), st.sampled_from(KERNELS), st.sampled_from(list(TOLERANCE)))
def test_random_forests(history: list[tuple], kernel: Kernel, dtype: torch.dtype) -> None:  # type: ignore[type-arg]
    model = Model(kernel, 16, dtype)
    model.join([0, 1, 0, 1, 0])
    for name, *arguments in history:
        ids = list(model.contexts)
        match name, arguments:
            case "join", (tokens,):
                model.join(tokens)
            case "join like", (which, own) if ids:
                model.join(model.contexts[ids[which % len(ids)]] + own)
            case "extend", (counts,) if ids:
                model.extend({ids[which % len(ids)]: count for which, count in counts.items()})
            case "step", () if ids:
                model.step()
            case "fork", (which,) if ids:
                source = ids[which % len(ids)]
                model.contexts[model.attention.fork(source)] = list(model.contexts[source])
            case "truncate", (which, share) if ids:
                sequence = ids[which % len(ids)]
                length = max(1, round(share * len(model.contexts[sequence])))
                try:
                    model.attention.truncate(sequence, length)
                except SharedChunk:
                    continue
                del model.contexts[sequence][length:]
            case "remove", (which,) if ids:
                model.attention.remove_sequence(ids[which % len(ids)])
                del model.contexts[ids[which % len(ids)]]
        if model.contexts:
            model.check()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_step_of_a_server(kernel: Kernel) -> None:
    """In one step some sequences decode, one gets a part of its prompt, one joins, and one leaves."""
    model = Model(kernel, 16)
    for own in range(4):
        model.join([0, 1] * 20 + [own % 2])
    for _ in range(20):
        first, second, third, fourth = list(model.contexts)
        model.extend({third: 1, first: 7, fourth: 1})
        model.join([1, 0] * 18)
        model.attention.remove_sequence(second)
        del model.contexts[second]
        model.check()


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
