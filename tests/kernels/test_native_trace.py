"""Traced calls of the native kernels: the same results, the same work, and times that add up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chunkbench import ChunkAttention
from chunkbench.attention import Partition, WrongTensor
from chunkbench.bench.measure.profiler import thread_count
from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.trace import PARTS, Trace, TracedCall
from tests.attention.contexts import Contexts
from tests.pairs import pairs

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_the_first_phase_each_sequence_reads_everything(dtype: torch.dtype) -> None:
    traced = Traced(4, 2, 64, dtype, "sequence-first")
    trace = traced.trace()
    tokens = len(OWN) * SHARED + sum(OWN)
    assert not trace.shared.any()
    assert trace.read_bytes.sum() == tokens * 2 * 2 * 64 * dtype.itemsize
    assert trace.flops.sum() == tokens * 4 * 4 * 64


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


def test_lengths_of_a_later_step_count() -> None:
    """A step inside a chunk changes lengths and no plan."""
    traced = Traced(4, 4, 32, torch.float32)
    before = traced.trace()
    traced.step()
    after = traced.trace()
    assert after.read_bytes.sum() - before.read_bytes.sum() == len(OWN) * 4 * 2 * 32 * 4
    assert after.flops.sum() - before.flops.sum() == len(OWN) * 4 * 4 * 32


def test_what_a_kernel_cannot_say() -> None:
    torch_kernel = ChunkAttention(4, 32, chunk_size=CHUNK, dtype=torch.float32, kernel="torch")
    q = torch.zeros(0, 4, 32)
    assert torch_kernel.trace(q, torch.empty_like(q), "decode") is None
    empty = ChunkAttention(4, 32, chunk_size=CHUNK, dtype=torch.float32, kernel="native")
    assert empty.trace(q, torch.empty_like(q), "decode") is None


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


def test_a_plan_is_made_again_for_another_number_of_threads() -> None:
    traced = Traced(4, 4, 64, torch.float32)
    kernel = traced.attention._kernel
    assert isinstance(kernel, TppNative)
    made = []
    for count in (1, 1, 3):
        with thread_count(count):
            kernel.plan(traced.attention._tree.plan())
        made.append(kernel._work)
    assert made[0] is made[1]
    assert made[1] is not made[2]
