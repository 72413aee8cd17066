"""Calls of real sessions, as a profile makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.contract import Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.measure.profiler import TIMED, TRACED, repeat, thread_count, timed_call, traced_call, watched_call
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.kernels import cpu

POINT = AttentionPoint(
    n_p=288, n_s=256, n_c=3, batch_size=4, heads=4, kv_heads=2, head_dim=32, chunk_size=16, block_size=16,
    dtype="float32", device="cpu",
)  # fmt: skip


@pytest.fixture
def threads() -> Iterator[int]:
    with thread_count(2):
        yield 2


class Calls:
    """The arguments of all kinds of calls for one implementation."""

    def __init__(self, implementation: str) -> None:
        inputs = PooledInputs(POINT, 0)
        self.session: Session = REGISTRY.load(implementation).prepare(inputs)
        self.out = torch.zeros(inputs.out_shape(implementation))
        self.sweeps = 0
        self.arguments: tuple[Any, ...] = (self.session, inputs, self.out, POINT.n_c, 7)

    def sweep(self) -> None:
        self.sweeps += 1

    def spy(self, note: Callable[[], int]) -> list[int]:
        """What `note` returns at each decode from now on."""
        notes: list[int] = []
        decode = self.session.decode

        def noted(q: torch.Tensor, out: torch.Tensor) -> None:
            notes.append(note())
            decode(q, out)

        self.session.decode = noted  # type: ignore[method-assign]
        return notes


@pytest.mark.parametrize("implementation", ["chunk_attn", "naive", "shared_prefix_matmul"])
def test_timed_calls_decode_the_last_step(implementation: str, threads: int) -> None:
    calls, outs = Calls(implementation), []
    used = calls.spy(torch.get_num_threads)
    for call in TIMED:
        result = timed_call(*calls.arguments, call, calls.sweep)
        assert len(result.decode_us) == 1
        assert len(result.append_us) == len(result.plan_us) == POINT.n_c
        outs.append(calls.out.clone())
    assert used == [threads, threads, threads, 1]  # cold, warm after an untimed one, one thread
    assert calls.sweeps == 2  # none before the warm decode
    assert torch.get_num_threads() == threads
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])


@pytest.mark.skipif(cpu.native() is None, reason="the native module is missing")
@pytest.mark.parametrize(
    "implementation", ["chunk_attn", "chunk_attn_no_tpp", "paged_attn", "paged_attn_star", "paged_attn_whole"]
)
def test_the_native_kernels_show_their_units(implementation: str, threads: int) -> None:
    calls = Calls(implementation)
    timed_call(*calls.arguments, "cold", calls.sweep)
    expected = calls.out.clone()
    for call in TRACED:
        calls.out.fill_(7)
        trace = traced_call(*calls.arguments, call, calls.sweep)
        assert trace is not None
        assert trace.threads == threads
        assert trace.seconds > max(unit.end_s for unit in trace.units) > 0
        # Three completion tokens: 4 * (288 + 3) tokens of 4 heads, 4 * d operations each.
        assert sum(unit.flops for unit in trace.units) == 4 * 291 * 4 * 4 * 32
        assert any(unit.shared for unit in trace.units) == (implementation == "chunk_attn")
        for unit in trace.units:
            parts = unit.scores_s + unit.softmax_s + unit.values_s
            assert unit.begin_s <= unit.ready_s + 1e-6 <= unit.end_s + 2e-6
            assert parts <= unit.end_s - unit.ready_s + 1e-6
        if call != "compute":
            assert torch.equal(calls.out, expected if call == "decode" else torch.full_like(expected, 7))
    assert calls.sweeps == 3  # none before computing alone


@pytest.mark.parametrize("call", TRACED)
def test_a_session_without_a_trace_has_none(call: Any) -> None:
    calls = Calls("naive")
    assert traced_call(*calls.arguments, call, calls.sweep) is None


def test_operators_are_those_of_pytorch() -> None:
    calls = Calls("naive")
    watched = watched_call(*calls.arguments, calls.sweep)
    assert watched is not None
    assert "aten::bmm" in {operator.name for operator in watched.operators}
    times = [operator.self_us for operator in watched.operators]
    assert times == sorted(times, reverse=True)
    assert 0 < sum(times) <= watched.us
    native = Calls("chunk_attn")
    if cpu.native() is not None:
        assert watched_call(*native.arguments, native.sweep) is None


def test_repeated_decodes_are_counted() -> None:
    calls = Calls("naive")
    seen = calls.spy(lambda: 1)
    often = partial(repeat, *calls.arguments)
    assert often(0.0) == 1
    assert often(0.1) == len(seen) - 1 > 1  # so long that one slow decode does not fill it
