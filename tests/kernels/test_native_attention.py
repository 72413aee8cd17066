"""The native kernels: attention and products against float64 for every instruction set of this CPU, traced calls."""

from __future__ import annotations

import itertools
import math
import os
import resource
from typing import ClassVar

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from chunkbench import ChunkAttention
from chunkbench.attention import Partition, WrongTensor
from chunkbench.bench.measure.profiler import thread_count
from chunkbench.kernels import cpu
from chunkbench.kernels.changes import Append
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.cpu.linear import PackedWeights, can_pack
from chunkbench.kernels.cpu.store import PackedStore, dtype_name
from chunkbench.kernels.eight_bits import stored
from chunkbench.kernels.planners import Planner, flat, node_wise, two_phase
from chunkbench.kernels.query_rows import QueryRows
from chunkbench.kernels.reference import attention
from chunkbench.kernels.trace import PARTS, Trace, TracedCall
from chunkbench.kv_dtype import KvDtype
from tests.attention.contexts import Contexts
from tests.kernels.pieces import instruction_set
from tests.pairs import pairs, values

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

ISAS = cpu.required().isas()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


class Checked(Contexts):
    """Compares the kernels of every instruction set; they read the same K and V."""

    tolerance: ClassVar = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        dim: int,
        chunk: int,
        dtype: torch.dtype,
        planner: Planner = node_wise,
        seed: int = 0,
        kv_dtype: KvDtype = "same",
        softcap: float = 0.0,
    ) -> None:
        cache = ChunkAttention(heads, dim, kv_heads, chunk, dtype=dtype, kernel="native", kv_dtype=kv_dtype)
        cache.softcap = softcap  # of the kernels below, which are those that are compared
        super().__init__(cache, seed=seed)
        store = self.attention._store
        assert isinstance(store, PackedStore)
        self.kernels: dict[str, TppNative] = {}
        for isa in ISAS:
            with instruction_set(isa):
                self.kernels[isa] = TppNative(store, heads, planner, softcap=softcap)

    def plan(self, rows: QueryRows | None = None) -> None:
        plan = self.attention._tree.plan()
        for kernel in self.kernels.values():
            kernel.plan(plan, query_rows=rows)

    def outputs(self, q: torch.Tensor, layer: int = 0, rows: QueryRows | None = None) -> dict[str, torch.Tensor]:
        self.plan(rows)
        outputs = {isa: torch.full_like(q, float("nan")) for isa in ISAS}
        for isa, kernel in self.kernels.items():
            kernel.decode(q, outputs[isa])
        return outputs


@pytest.mark.parametrize(
    ("dtype", "heads", "dim"), pairs(DTYPES, [(4, 4), (8, 2), (6, 1)], [16, 48, 64, 128, 256, 272]), ids=str
)
def test_head_counts_and_dimensions(dtype: torch.dtype, heads: tuple[int, int], dim: int) -> None:
    cache = Checked(*heads, dim, 32, dtype)
    shared = list(range(70))
    for k in range(7):
        cache.add([*shared, *range(100 + 10 * k, 100 + 13 * k)])
    cache.add([3])
    for _ in range(3):
        cache.step()
        cache.check()


@pytest.mark.parametrize(
    ("kv_dtype", "dtype", "heads", "dim"),
    pairs(["int8", "uint8", "fp8"], DTYPES, [(4, 4), (8, 2), (6, 1)], [16, 48, 64, 128, 256]),
    ids=str,
)
def test_k_and_v_in_8_bits(kv_dtype: KvDtype, dtype: torch.dtype, heads: tuple[int, int], dim: int) -> None:
    cache = Checked(*heads, dim, 32, dtype, kv_dtype=kv_dtype)
    shared = list(range(70))
    for k in range(7):
        cache.add([*shared, *range(100 + 10 * k, 100 + 13 * k)])
    cache.add([3])
    for _ in range(3):
        cache.step()
        cache.check()
    cache.fork(2)
    cache.truncate(1, 75)
    cache.truncate(3, 40)
    cache.step()
    cache.check(scale=10)


@pytest.mark.parametrize("kv_dtype", ["int8", "uint8", "fp8"])
def test_sums_of_a_chunk_in_8_bits(kv_dtype: KvDtype) -> None:
    cache = Checked(2, 2, 80, 32, torch.bfloat16, kv_dtype=kv_dtype)
    cache.add(list(range(32)))
    (kept,) = cache.kv.values()
    sums = stored(kept[0], kv_dtype).sum(1).transpose(0, 1)
    torch.testing.assert_close(cache.attention._store.sums(0).double(), sums, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [16, 48, 64, 256])
def test_every_number_of_tokens_in_the_last_chunk(dtype: torch.dtype, chunk: int) -> None:
    cache = Checked(2, 2, 32, chunk, dtype)
    cache.add(list(range(chunk - 3)))
    cache.add([*range(chunk), 7])
    for _ in range(20):
        cache.step()
        cache.check()


@pytest.mark.parametrize("planner", [two_phase, flat])
def test_a_plan_is_made_anew_when_a_chunk_begins(planner: Planner) -> None:
    cache = Checked(2, 2, 32, 16, torch.float32, planner)
    for row in range(5):
        cache.add([*range(64), 500 + row, *range(row * 9)])
    cache.add([7])
    made = []
    for step in range(160):
        cache.step()
        cache.plan()
        made.append(cache.kernels[ISAS[0]]._work)
        if step % 16 == 0:
            cache.check()
    # 10 chunks a sequence, which begin at five different steps of sixteen.
    assert 10 * 5 <= len(set(made)) <= 11 * 5


@pytest.mark.parametrize(
    ("rows", "shape"),
    values([5, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 100], [(2, 2, 32, 32), (2, 2, 96, 64), (8, 2, 128, 32)]),
)
def test_any_number_of_rows_shares_a_chunk(rows: int, shape: tuple[int, int, int, int]) -> None:
    """A matrix unit takes sixteen rows at a time: numbers around multiples of sixteen, in one dtype."""
    *heads_and_dim, chunk = shape
    cache = Checked(*heads_and_dim, chunk, torch.bfloat16)
    for row in range(rows):
        cache.add([*range(2 * chunk + 5), 900 + row % 90, row])
    cache.check()
    cache.step()
    cache.check(scale=30)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_error_is_at_most_1_25_times_that_of_pytorch(dtype: torch.dtype) -> None:
    cache = Checked(8, 4, 128, 64, dtype)
    for k in range(8):
        cache.add([*range(512), *range(600 + 50 * k, 650 + 60 * k)])
    cache.step()
    q = cache.normal(8, 8, 128)
    expected = cache.expected(q)
    sdpa_error = plain_error = 0.0
    for row, (k, v) in enumerate(kv[0] for kv in cache.kv.values()):
        batched = [x.transpose(0, 1)[None] for x in (q[row][None], k, v)]
        sdpa = scaled_dot_product_attention(*batched, enable_gqa=True)[0, :, 0]
        keys, values = (x.repeat_interleave(2, dim=1).transpose(0, 1) for x in (k, v))
        scores = (keys @ q[row][:, :, None])[..., 0] / math.sqrt(128)
        plain = (torch.softmax(scores, -1)[:, None] @ values)[:, 0]
        sdpa_error += float((sdpa.double() - expected[row]).square().sum())
        plain_error += float((plain.double() - expected[row]).square().sum())
    # In float32 the error is that of the order of additions. MKL adds in another order on every kind of CPU: in one
    # process, SDPA's error is 2.4e-8 with MKL's AVX-512 path and 3.1e-8 with its AVX2 path.
    pytorch_error = max(sdpa_error, plain_error) if dtype == torch.float32 else sdpa_error
    for isa, out in cache.outputs(q).items():
        native_error = float((out.double() - expected).square().sum())
        assert native_error**0.5 <= 1.25 * pytorch_error**0.5, isa


@pytest.mark.parametrize(
    ("early", "dtype", "kv_heads", "threads"), pairs([False, True], DTYPES, [10, 5], [1, 2, 3]), indirect=["threads"]
)
def test_private_runs_of_many_heads(dtype: torch.dtype, kv_heads: int, early: bool, threads: int) -> None:
    """Rows read eight heads chunk by chunk, then the last two; with and without a shared run before their own."""
    cache = Checked(10, kv_heads, 32, 16, dtype)
    for kernel in cache.kernels.values():
        kernel._fetch_early, kernel._side_by_side = early, not early
    for k in range(10):
        cache.add(list(range(100 * k, 100 * k + 40 + 5 * k)))
        cache.add([*range(2000, 2033), *range(3000 + 100 * k, 3020 + 100 * k + 3 * k)])
    for _ in range(2):
        cache.step()
        cache.check()


def test_one_head_and_one_long_sequence_on_several_threads(threads: int) -> None:
    cache = Checked(1, 1, 64, 16, torch.float32)
    cache.add([token % 977 for token in range(2000)])
    cache.step()
    cache.check()
    cache.attention.plan()
    assert cache.attention.work_items > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_of_ten_thousand(dtype: torch.dtype) -> None:
    cache = Checked(2, 2, 64, 16, dtype)
    cache.add(list(range(100)))
    cache.add([*range(64), *range(200, 210)])
    cache.step()
    cache.check(scale=1e4, times=2)


def test_infinite_and_nan_keys_give_the_result_of_the_reference() -> None:
    for value in (float("-inf"), float("inf"), float("nan")):
        cache = Checked(1, 1, 16, 16, torch.float32)
        k, v = torch.randn(2, 4, 1, 16, generator=torch.Generator().manual_seed(0))
        k[2, 0] = torch.tensor([0.0] * 3 + [value] + [0.0] * 12)
        cache.attention.add_sequence([1, 2, 5, 9], k, v)
        q = torch.ones(1, 1, 16)
        for out in cache.outputs(q).values():
            torch.testing.assert_close(out[0], attention(q[0], k, v).float(), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_denormal_values_are_kept() -> None:
    cache = Checked(1, 1, 16, 16, torch.float32)
    v = torch.randn(3, 1, 16, generator=torch.Generator().manual_seed(0)) * 1e-41
    cache.attention.add_sequence([1, 2, 3], torch.zeros(3, 1, 16), v)
    expected = v.double().mean(0)
    assert expected.abs().max() > 0
    for out in cache.outputs(torch.zeros(1, 1, 16)).values():
        torch.testing.assert_close(out[0].double(), expected, rtol=0, atol=4e-45)


@settings(max_examples=40)
@given(
    paths=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=9
    ),
    chunk=st.sampled_from([16, 32, 64]),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 3)]),
    dtype=st.sampled_from(DTYPES),
    steps=st.integers(1, 40),
    count=st.sampled_from([1, 1, 1, 2, 3]),
)
def test_random_forests(
    paths: list[tuple[int, ...]], chunk: int, heads: tuple[int, int], dtype: torch.dtype, steps: int, count: int
) -> None:
    cache = Checked(*heads, 32, chunk, dtype)
    for root, long, branch, more in paths:
        cache.add([*range(100 * root, 100 * root + long), *range(400 + 100 * branch, 400 + 100 * branch + more)])
    for _ in range(steps):
        cache.step()
    with thread_count(count):
        cache.check()


CHUNK = 16
SHARED, OWN = 512, (5, 20, 16, 1)
"""Four sequences share enough whole chunks for items of several rows; of their own last chunks one is full."""
SLACK_S = 1e-6
"""Clock readings are not ordered to the cycle."""


class Traced(Contexts):
    """The four sequences, queries of one step, and traced calls."""

    def __init__(
        self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, partition: Partition = "two-phase"
    ) -> None:
        cache = ChunkAttention(heads, dim, kv_heads, CHUNK, dtype=dtype, kernel="native", partition=partition)
        super().__init__(cache)
        for row, own in enumerate(OWN):
            self.add([*range(SHARED), *range(1000 * (row + 1), 1000 * (row + 1) + own)])
        self.q = self.normal(len(OWN), heads, dim)
        self.out = torch.full_like(self.q, float("nan"))

    def trace(self, call: TracedCall = "decode") -> Trace:
        assert isinstance(self.attention, ChunkAttention)
        trace = self.attention.trace(self.q, self.out, call)
        assert trace is not None
        return trace


@pytest.mark.parametrize(("dtype", "heads", "dim"), pairs(DTYPES, [(4, 4), (8, 2), (6, 1)], [16, 64, 128]), ids=str)
def test_a_traced_decode_is_that_decode_and_counts_its_work(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, threads: int
) -> None:
    query_heads, kv_heads = heads
    traced = Traced(query_heads, kv_heads, dim, dtype)
    trace = traced.trace()
    expected = torch.empty_like(traced.q)
    traced.attention.attend(0, traced.q, expected)
    assert torch.equal(traced.out, expected)
    # By hand: each KV head of each distinct token is read once; each query head multiplies every token of its sequence
    # twice, with d multiplications and d additions.
    assert trace.read_bytes.sum() == (SHARED + sum(OWN)) * kv_heads * 2 * dim * dtype.itemsize
    assert trace.flops.sum() == (len(OWN) * SHARED + sum(OWN)) * query_heads * 4 * dim
    assert trace.read_bytes[trace.shared].sum() == SHARED * kv_heads * 2 * dim * dtype.itemsize
    assert trace.flops[trace.shared].sum() == len(OWN) * SHARED * query_heads * 4 * dim
    assert trace.threads == threads
    assert set(trace.thread) <= set(range(threads))
    assert trace.place_bytes % (CHUNK * 2 * dim * dtype.itemsize) == 0
    assert 0 < trace.place_bytes <= kv_heads * CHUNK * 2 * dim * dtype.itemsize


def test_without_the_first_phase_each_sequence_reads_everything() -> None:
    traced = Traced(4, 2, 64, torch.float32, "sequence-first")
    tokens, later = len(OWN) * SHARED + sum(OWN), len(OWN)
    for read in (tokens, tokens + later):  # a step inside a chunk changes lengths and no plan
        trace = traced.trace()
        assert not trace.shared.any()
        assert trace.read_bytes.sum() == read * 2 * 2 * 64 * 4
        assert trace.flops.sum() == read * 4 * 4 * 64
        traced.step()


@pytest.mark.parametrize("call", ["decode", "read", "compute"])
def test_times_add_up(call: TracedCall, threads: int) -> None:
    traced = Traced(8, 8, 64, torch.float32)
    traced.trace(call)
    trace = traced.trace(call)
    assert trace.parts.shape == (len(trace.begin), len(PARTS))
    assert (trace.parts >= 0).all()
    assert (trace.begin >= 0).all()
    assert (trace.ready >= trace.begin - SLACK_S).all()
    waiting = trace.ready - trace.begin
    assert (trace.parts.sum(1) + waiting <= trace.end - trace.begin + SLACK_S).all()
    assert trace.end.max() <= trace.seconds + SLACK_S
    for thread in range(threads):  # a thread works on one unit at a time
        own = np.flatnonzero(trace.thread == thread)
        assert (trace.begin[own][1:] >= trace.end[own][:-1] - SLACK_S).all()


def test_no_private_unit_is_ready_before_the_shared_ones_of_its_head(threads: int) -> None:
    trace = Traced(4, 1, 64, torch.float32).trace()
    computed = trace.ready + trace.parts.sum(1)
    assert trace.shared.any()
    assert (trace.ready[~trace.shared] >= computed[trace.shared].max() - SLACK_S).all()


def test_reading_leaves_out_alone_and_computing_does_the_same_work() -> None:
    traced = Traced(8, 2, 64, torch.bfloat16)
    decoded = traced.trace()
    traced.out.fill_(7)
    read = traced.trace("read")
    assert (traced.out == 7).all()
    computed = traced.trace("compute")
    for other in (read, computed):
        assert (other.read_bytes == decoded.read_bytes).all()
        assert (other.flops == decoded.flops).all()
        assert (other.shared == decoded.shared).all()
    assert traced.trace().flops.sum() == decoded.flops.sum()
    expected = torch.empty_like(traced.q)
    traced.attention.attend(0, traced.q, expected)  # what `compute` left behind matters to no later call
    traced.trace()
    assert torch.equal(traced.out, expected)


def test_wrong_tensors_are_refused() -> None:
    """Their addresses go to the kernel as they are."""
    traced = Traced(4, 4, 32, torch.float32)
    assert isinstance(traced.attention, ChunkAttention)
    for q, out in (
        (traced.q[:2], traced.out),
        (traced.q, traced.out.double()),
        (traced.q, traced.out.transpose(0, 1).contiguous().transpose(0, 1)),
    ):
        with pytest.raises(WrongTensor):
            traced.attention.trace(q, out, "decode")
    strided = traced.q.transpose(0, 1).contiguous().transpose(0, 1)
    expected = traced.out.clone()
    traced.attention.attend(0, traced.q, expected)
    traced.attention.trace(strided, traced.out, "decode")
    assert torch.equal(traced.out, expected)


MODULE = cpu.required()
ERRORS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Largest error over the largest result: rounding of the result, and of sums."""
ROWS = (1, 2, 5, 13, 16, 31, 48, 49, 100)
SHAPES = ((16, 16), (96, 48), (64, 160), (80, 35), (576, 64), (784, 32))
"""Inputs, outputs."""


def error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return ((y.double() - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("isa", MODULE.isas())
def test_products_of_every_shape(dtype: torch.dtype, isa: str) -> None:
    torch.manual_seed(0)
    for (inputs, outputs), bias in itertools.product(SHAPES, (False, True)):
        layer = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
        assert can_pack(layer)
        stored, wide = PackedWeights([layer]), PackedWeights([layer], "store32")
        added = PackedWeights([layer], "add32")
        for rows in ROWS:
            x = torch.randn(rows, inputs, dtype=dtype)
            expected = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
            for weights, limit in ((stored, ERRORS[dtype]), (wide, 3e-6)):
                y = torch.full((rows, weights.blocks * 16), float("nan"), dtype=dtype if weights is stored else None)
                MODULE.linear(weights.native, x.data_ptr(), rows, y.data_ptr(), 2, isa)
                assert error(y[:, :outputs], expected) < limit, (inputs, outputs, rows)
            before = torch.randn(rows, added.blocks * 16)
            y = before.clone()
            MODULE.linear(added.native, x.data_ptr(), rows, y.data_ptr(), 3, isa)
            assert error(y[:, :outputs], before[:, :outputs] + expected) < 3e-6


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("isa", MODULE.isas())
@pytest.mark.parametrize("bias", [False, True])
def test_a_gate(dtype: torch.dtype, isa: str, bias: bool) -> None:
    torch.manual_seed(0)
    gate, up = (nn.Linear(64, 96, bias=bias, dtype=dtype) for _ in range(2))
    with torch.no_grad():
        gate.weight.mul_(40)  # exponentials of large numbers, too
    weights = PackedWeights([gate, up], "gate")
    for rows in ROWS:
        x = torch.randn(rows, 64, dtype=dtype)
        parts = [
            nn.functional.linear(x.double(), one.weight.double(), one.bias.double() if bias else None)
            for one in (gate, up)
        ]
        y = torch.full((rows, 96), float("nan"), dtype=dtype)
        MODULE.linear(weights.native, x.data_ptr(), rows, y.data_ptr(), 2, isa)
        assert error(y, nn.functional.silu(parts[0]) * parts[1]) < ERRORS[dtype]


@pytest.mark.parametrize("isa", MODULE.isas())
def test_a_gate_of_any_size(isa: str) -> None:
    """The gate is input 0, up is input 1."""
    sizes = torch.tensor([-3e38, -200.0, -1.0, 0.0, 200.0, 3e38, float("nan")])
    gate, up = (nn.Linear(16, 16, bias=False) for _ in range(2))
    for place, one in enumerate((gate, up)):
        one.weight.data.zero_()[:, place] = 1.0
    x = torch.zeros(len(sizes), 16)
    x[:, 0], x[:, 1] = sizes, 0.5
    y, weights = torch.empty(len(sizes), 16), PackedWeights([gate, up], "gate")
    MODULE.linear(weights.native, x.data_ptr(), len(sizes), y.data_ptr(), 1, isa)
    expected = nn.functional.silu(sizes.double()) * 0.5
    torch.testing.assert_close(y[:, 3].double(), expected, rtol=1e-5, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("rows", [1, 20])
def test_a_norm(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 96) * 3, torch.randn(96)
    y = torch.empty(rows, 96, dtype=dtype)
    MODULE.rms_norm(dtype_name(dtype), x.data_ptr(), rows, 96, weight.data_ptr(), 1e-5, y.data_ptr(), 2)
    expected = nn.functional.rms_norm(x.double(), (96,), weight.double(), 1e-5)
    assert error(y, expected) < ERRORS[dtype]


def test_layers_that_the_kernels_do_not_take() -> None:
    assert not can_pack(nn.Linear(24, 16))
    assert not can_pack(nn.Linear(16, 16, dtype=torch.float64))


def test_inputs_of_any_shape_and_stride() -> None:
    layer = nn.Linear(32, 20)
    x = torch.randn(2, 64, 3)[:, ::2].transpose(1, 2)
    torch.testing.assert_close(PackedWeights([layer])(x), layer(x).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer ends such a process")
def test_a_thread_that_lacks_memory_gives_an_error() -> None:
    """No thread finds room for a row of 2^24 numbers; none may end the process."""
    layer = MODULE.make_linear("float32", 1 << 24, 64, 0, 0, "store")
    x, y = torch.zeros(1), torch.zeros(1)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (16 << 20), before[1]))
    try:
        with pytest.raises(MemoryError):
            MODULE.linear(layer, x.data_ptr(), 1, y.data_ptr(), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_tokens_are_written_as_few_are(dtype: torch.dtype) -> None:
    """More than 4 MB at once are written past the caches. The slots are the first and the second of a pair, and the
    last of a block."""
    rows, heads, d = 2400, 4, 128
    assert rows * 2 * heads * d * dtype.itemsize > 4 << 20
    whole, parts = (PackedStore(16, heads, d, dtype) for _ in range(2))
    chunks = np.arange(rows)
    for store in (whole, parts):
        store.grow(rows)
    numbers = torch.Generator().manual_seed(0)
    for slot in (*range(3), 15):
        k, v = (torch.randn(rows, heads, d, generator=numbers).to(dtype) for _ in range(2))
        slots = np.full(rows, slot)
        whole.append(Append(chunks, slots, np.empty(0, np.int64), True), k, v)
        for some in np.array_split(chunks, 8):
            parts.append(Append(some, slots[some], np.empty(0, np.int64), True), k[some], v[some])
    for chunk in (0, 1, rows // 2, rows - 1):
        for one, other in zip(whole._stored(chunk), parts._stored(chunk), strict=True):
            assert torch.equal(one.view(torch.int32), other.view(torch.int32))
