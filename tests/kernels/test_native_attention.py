"""The native kernels against float64, for every instruction set of this CPU, every dtype, forests and edge cases."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from chunkbench import ChunkAttention
from chunkbench.kernels import cpu
from chunkbench.kernels.cpu import decode
from chunkbench.kernels.reference import attention

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

ISAS = cpu.required().isas()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CHUNKBENCH_ISA", request.param)
    return str(request.param)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class CheckedCache:
    """A `ChunkAttention`, and the token ids of every sequence. `tables` holds K and V of each token id."""

    def __init__(self, heads: int, kv_heads: int, dim: int, chunk: int, dtype: torch.dtype, seed: int = 0) -> None:
        self.attention = ChunkAttention(heads, dim, kv_heads, chunk, dtype=dtype, kernel="native")
        self.dtype = dtype
        self.shape = (kv_heads, dim)
        self.heads = heads
        self.random = torch.Generator().manual_seed(seed)
        self.tables = [self._normal(997, *self.shape) for _ in range(2)]
        self.contexts: dict[int, list[int]] = {}
        self.next = 500

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random).to(self.dtype)

    def join(self, tokens: list[int]) -> int:
        k, v = (table[torch.tensor(tokens) % 997] for table in self.tables)
        sequence = self.attention.add_sequence(tokens, k, v)
        self.contexts[sequence] = list(tokens)
        return sequence

    def step(self) -> None:
        tokens = list(range(self.next, self.next + len(self.contexts)))
        self.next += len(tokens)
        k, v = (table[torch.tensor(tokens) % 997] for table in self.tables)
        self.attention.append(tokens, k, v)
        for own, token in zip(self.contexts.values(), tokens, strict=True):
            own.append(token)

    def error(self, scale: float = 1.0) -> float:
        q = (self._normal(len(self.contexts), self.heads, self.shape[1]).float() * scale).to(self.dtype)
        out = torch.full_like(q, float("nan"))
        self.attention.decode(q, out)
        worst = 0.0
        for row, tokens in enumerate(self.contexts.values()):
            k, v = (table[torch.tensor(tokens) % 997] for table in self.tables)
            expected = attention(q[row], k, v)
            worst = max(worst, float((out[row].double() - expected).abs().max() / expected.abs().max()))
        return worst


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (6, 1)])
@pytest.mark.parametrize("dim", [16, 48, 64, 128, 256])
def test_head_counts_and_dimensions(isa: str, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    cache = CheckedCache(heads, kv_heads, dim, 32, dtype)
    shared = list(range(70))
    for k in range(7):
        cache.join([*shared, *range(100 + 10 * k, 100 + 13 * k)])
    cache.join([3])
    for _ in range(3):
        cache.step()
        assert cache.error() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [16, 48, 64, 256])
def test_every_number_of_tokens_in_the_last_chunk(isa: str, dtype: torch.dtype, chunk: int) -> None:
    cache = CheckedCache(2, 2, 32, chunk, dtype)
    cache.join(list(range(chunk - 3)))
    cache.join([*range(chunk), 7])
    for _ in range(20):
        cache.step()
        assert cache.error() < TOLERANCE[dtype]


@pytest.mark.parametrize("chunk_first", [True, False])
def test_plans_that_grow_are_made_anew_only_now_and_then(
    isa: str, chunk_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = decode.NativeDecode.make
    monkeypatch.setattr(decode.NativeDecode, "make", lambda self, *work: made.append(1) or make(self, *work))
    cache = CheckedCache(2, 2, 32, 16, torch.float32)
    cache.attention._kernel.chunk_first = chunk_first
    for row in range(5):
        cache.join([*range(64), 500 + row, *range(row * 9)])
    cache.join([7])
    for step in range(400):
        cache.step()
        if step % 5 == 0:
            assert cache.error() < TOLERANCE[torch.float32]
        else:
            cache.attention.decode(*(torch.zeros(6, 2, 32) for _ in range(2)))
    # 25 chunks a sequence, which begin at five different steps of sixteen.
    assert 1 < len(made) < 12


@pytest.mark.parametrize("rows", [5, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 100])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "chunk"), [(2, 2, 32, 32), (2, 2, 96, 64), (8, 2, 128, 32)])
def test_any_number_of_rows_shares_a_chunk(
    isa: str, rows: int, heads: int, kv_heads: int, dim: int, chunk: int
) -> None:
    """A matrix unit takes sixteen rows at a time: numbers around multiples of sixteen, in one dtype."""
    cache = CheckedCache(heads, kv_heads, dim, chunk, torch.bfloat16)
    for row in range(rows):
        cache.join([*range(2 * chunk + 5), 900 + row % 90, row])
    assert cache.error() < TOLERANCE[torch.bfloat16]
    cache.step()
    assert cache.error(scale=30) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fork_truncate_and_remove(isa: str, dtype: torch.dtype) -> None:
    cache = CheckedCache(4, 2, 64, 16, dtype)
    first, second = cache.join(list(range(45))), cache.join([*range(32), 90, 91])
    for _ in range(5):
        cache.step()
    fork = cache.attention.fork(first)
    cache.contexts[fork] = list(cache.contexts[first])
    cache.step()
    assert cache.error() < TOLERANCE[dtype]
    cache.attention.truncate(first, 49)
    del cache.contexts[first][49:]
    cache.step()
    assert cache.error() < TOLERANCE[dtype]
    cache.attention.remove_sequence(second)
    del cache.contexts[second]
    cache.join([*range(48), 5])
    cache.step()
    assert cache.error() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_error_is_at_most_1_25_times_that_of_pytorch(isa: str, dtype: torch.dtype) -> None:
    cache = CheckedCache(8, 4, 128, 64, dtype)
    for k in range(8):
        cache.join([*range(512), *range(600 + 50 * k, 650 + 60 * k)])
    cache.step()
    q = cache._normal(8, 8, 128)
    out = cache.attention.decode(q)
    native_error = sdpa_error = plain_error = 0.0
    for row, tokens in enumerate(cache.contexts.values()):
        k, v = (table[torch.tensor(tokens) % 997] for table in cache.tables)
        expected = attention(q[row], k, v)
        batched = [x.transpose(0, 1)[None] for x in (q[row][None], k, v)]
        sdpa = scaled_dot_product_attention(*batched, enable_gqa=True)[0, :, 0]
        keys, values = (x.repeat_interleave(2, dim=1).transpose(0, 1) for x in (k, v))
        scores = (keys @ q[row][:, :, None])[..., 0] / math.sqrt(128)
        plain = (torch.softmax(scores, -1)[:, None] @ values)[:, 0]
        native_error += float((out[row].double() - expected).square().sum())
        sdpa_error += float((sdpa.double() - expected).square().sum())
        plain_error += float((plain.double() - expected).square().sum())
    # In float32 the error is that of the order of additions. MKL adds in another order on every kind of CPU: in one
    # process, SDPA's error is 2.4e-8 with MKL's AVX-512 path and 3.1e-8 with its AVX2 path.
    pytorch_error = max(sdpa_error, plain_error) if dtype == torch.float32 else sdpa_error
    assert native_error**0.5 <= 1.25 * pytorch_error**0.5


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kv_heads", [10, 5])
def test_private_runs_of_many_heads(
    isa: str, dtype: torch.dtype, kv_heads: int, early: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows read eight heads chunk by chunk, then the last two; with and without a shared run before their own."""
    monkeypatch.setattr(decode, "reading", lambda dtype, isa: (early, not early))
    cache = CheckedCache(10, kv_heads, 32, 16, dtype)
    for k in range(10):
        cache.join(list(range(100 * k, 100 * k + 40 + 5 * k)))
        cache.join([*range(2000, 2033), *range(3000 + 100 * k, 3020 + 100 * k + 3 * k)])
    for _ in range(2):
        cache.step()
        assert cache.error() < TOLERANCE[dtype]


def test_one_head_and_one_long_sequence_on_several_threads(isa: str, threads: int) -> None:
    cache = CheckedCache(1, 1, 64, 16, torch.float32)
    cache.join([token % 977 for token in range(2000)])
    cache.step()
    assert cache.error() < 1e-5
    cache.attention.plan()
    assert (cache.attention.work_items > 1) == (threads > 0)


def test_more_queries_than_one_item_holds(isa: str) -> None:
    cache = CheckedCache(8, 1, 32, 16, torch.float32)
    for k in range(40):
        cache.join([*range(64), 100 + k])
    cache.step()
    assert cache.error() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_of_ten_thousand(isa: str, dtype: torch.dtype) -> None:
    cache = CheckedCache(2, 2, 64, 16, dtype)
    cache.join(list(range(100)))
    cache.join([*range(64), *range(200, 210)])
    cache.step()
    assert cache.error(scale=1e4) < TOLERANCE[dtype] * 2


def test_infinite_and_nan_keys_give_the_result_of_the_reference(isa: str) -> None:
    for value in (float("-inf"), float("inf"), float("nan")):
        cache = CheckedCache(1, 1, 16, 16, torch.float32)
        cache.tables[0][5] = 0.0
        cache.tables[0][5, 0, 3] = value
        cache.join([1, 2, 5, 9])
        q = torch.ones(1, 1, 16)
        out = cache.attention.decode(q)
        tokens = torch.tensor([1, 2, 5, 9])
        expected = attention(q[0], cache.tables[0][tokens], cache.tables[1][tokens]).float()
        torch.testing.assert_close(out[0], expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_denormal_values_are_kept(isa: str) -> None:
    cache = CheckedCache(1, 1, 16, 16, torch.float32)
    cache.tables[1] *= 1e-41
    cache.join([1, 2, 3])
    out = cache.attention.decode(torch.zeros(1, 1, 16))
    expected = cache.tables[1][torch.tensor([1, 2, 3])].double().mean(0)
    assert expected.abs().max() > 0
    torch.testing.assert_close(out[0].double(), expected, rtol=0, atol=4e-45)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paths=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=9
    ),
    chunk=st.sampled_from([16, 32, 64]),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 3)]),
    dtype=st.sampled_from(DTYPES),
    steps=st.integers(1, 40),
)
def test_random_forests(
    isa: str, paths: list[tuple[int, ...]], chunk: int, heads: tuple[int, int], dtype: torch.dtype, steps: int
) -> None:
    cache = CheckedCache(*heads, 32, chunk, dtype)
    for root, long, branch, more in paths:
        cache.join([*range(100 * root, 100 * root + long), *range(400 + 100 * branch, 400 + 100 * branch + more)])
    for _ in range(steps):
        cache.step()
    assert cache.error() < TOLERANCE[dtype]


def test_an_instruction_set_that_the_cpu_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUNKBENCH_ISA", "avx1024")
    with pytest.raises(ValueError, match="CHUNKBENCH_ISA=avx1024: this CPU can run portable"):
        ChunkAttention(1, 16, kernel="native")


@pytest.mark.parametrize("threads_now", [1, 2, 4])
def test_results_do_not_depend_on_the_number_of_threads_beyond_rounding(threads_now: int) -> None:
    def output(threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        cache = CheckedCache(2, 1, 64, 16, torch.float32)
        for k in range(3):
            cache.join([*range(700), 900 + k])
        return cache.attention.decode(torch.ones(3, 2, 64))

    before = torch.get_num_threads()
    try:
        torch.testing.assert_close(output(threads_now), output(1), rtol=1e-5, atol=1e-6)
    finally:
        torch.set_num_threads(before)
