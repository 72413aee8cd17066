"""Clocks of a GPU, counters of perf, and the calls that a profile times, traces and watches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.analysis.noise import complaint
from chunkbench.bench.contract import Session
from chunkbench.bench.environment.gpu import Clock, Condition
from chunkbench.bench.measure import perf_counters
from chunkbench.bench.measure.clocks import ClockGuard, throttled
from chunkbench.bench.measure.perf_counters import NoCounters, counted, parse
from chunkbench.bench.measure.profiler import TIMED, TRACED, repeat, thread_count, timed_call, traced_call, watched_call
from chunkbench.bench.store.results import GpuState, Noise
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.kernels import cpu
from tests.baselines.checked import make_point


class Script:
    """A device whose clock readings come from a list; the last one repeats."""

    def __init__(self, clocks: Iterable[int | None], reasons: int = 0) -> None:
        self.clocks, self.reasons = list(clocks), reasons

    def clock(self) -> Clock:
        return Clock(self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0], self.reasons)

    def condition(self) -> Condition:
        return Condition(2619, 350.5, 61, 0, 0)


@pytest.mark.parametrize(
    ("mhz", "usual", "slow"), [(1484, [300, *[1980] * 4], True), (1485, [300, *[1980] * 4], False), (100, [], False)]
)
def test_below_75_percent_of_the_median_is_throttled(mhz: int, usual: list[int], slow: bool) -> None:
    assert throttled(mhz, usual) is slow


def test_a_throttled_sample_is_discarded_and_taken_again() -> None:
    pauses: list[float] = []
    guard = ClockGuard(Script([1980, 1980, 1200, 1980], reasons=0x4), pauses.append)
    samples = iter([10.0, 11.0, 99.0, 12.0])
    assert [guard.take(lambda: next(samples)) for _ in range(3)] == [10.0, 11.0, 12.0]
    state, discarded = guard.finish()
    assert discarded == len(pauses) == 1
    assert state is not None
    assert (state.sm_mhz, state.sm_mhz_lowest, state.slow_samples) == (1980, 1980, 0)
    assert state.throttled_by == ("power cap",)
    assert (state.power_w, state.temperature_c, state.other_processes) == (350.5, 61, 0)
    assert guard.finish()[1] == 0, "finish starts a new count"


def test_a_sample_that_stays_throttled_is_kept_and_marked() -> None:
    guard = ClockGuard(Script([1980, 1980, 900]), lambda _: None)
    for _ in range(2):
        guard.take(lambda: 10.0)
    guard.take(lambda: 30.0)
    state, discarded = guard.finish()
    assert state is not None
    assert (state.slow_samples, discarded) == (1, 3)
    assert "below 75% of its usual for 1 sample" in complaint(Noise(), 0.0, [state])
    assert complaint(Noise(), 0.0, [GpuState(sm_mhz=1980)]) == ""


@given(st.lists(st.integers(200, 2000), min_size=1, max_size=40), st.integers(1, 10))
def test_every_take_gives_a_sample_and_every_other_try_counts_as_discarded(clocks: list[int], wanted: int) -> None:
    guard = ClockGuard(Script(clocks), lambda _: None)
    tries = 0

    def sample() -> float:
        nonlocal tries
        tries += 1
        return float(tries)

    samples = [guard.take(sample) for _ in range(wanted)]
    state, discarded = guard.finish()
    assert len(samples) == wanted
    assert discarded == tries - wanted
    assert state is not None
    assert state.slow_samples <= wanted


def test_without_a_clock_no_sample_is_discarded() -> None:
    guard = ClockGuard(None)
    assert guard.take(lambda: 5.0) == 5.0
    assert guard.finish() == (None, 0)
    silent = ClockGuard(Script([None]))
    assert silent.take(lambda: 5.0) == 5.0
    state, _ = silent.finish()
    assert state is not None
    assert state.sm_mhz is None


PRINTED = """\
# started on Thu Nov 26 20:00:00 2026

2000000,,cycles,500123,100.00,,
5000000,,instructions,500123,100.00,2.50,insn per cycle
<not supported>,,cache-misses,0,100.00,,
12.50,msec,task-clock,12500000,100.00,0.99,CPUs utilized
"""


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("<not supported>,,cycles,0,100.00,,\n", "cycles not supported here"),
        ("<not counted>,,cycles,0,0.00,,\n", "cycles not counted here"),
        ("Error:\nAccess to performance monitoring is limited.\n", "Access to performance"),
        ("event syntax error: 'cycles,foo'\n   \\___ parser error\n", "event syntax error"),
        ("", "printed nothing"),
        *((f"{value},,cycles,5,100.00,,\n", f"{value} cycles: not a count") for value in ("nan", "inf", "-inf", "-1")),
    ],
)
def test_counts_are_read_and_what_is_none_says_why(printed: str, told: str) -> None:
    assert parse(PRINTED) == {"cycles": 2e6, "instructions": 5e6, "task-clock": 12.5}
    with pytest.raises(NoCounters, match=told):
        parse(printed)


@pytest.fixture
def perf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Puts a program of these lines in the place of perf, or none."""

    def install(*lines: str) -> None:
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}" if lines else str(tmp_path))
        (tmp_path / "perf").write_text("\n".join(["#!/bin/sh", *lines, ""]))
        (tmp_path / "perf").chmod(0o755 if lines else 0)

    return install


def test_a_machine_without_perf_says_so(perf: Callable[..., None]) -> None:
    perf()
    with pytest.raises(NoCounters, match="perf does not start: "):
        counted(os.getpid(), lambda: 1)


COUNTS = "echo 5,,cycles,5,100.00,, >&2"


@pytest.mark.parametrize("deaf", ["true", "-p"])
def test_a_perf_that_does_not_end_is_ended(
    deaf: str, perf: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    perf(COUNTS, 'trap "" INT', f'for word; do if [ "$word" = {deaf} ]; then sleep 100; fi; done')
    monkeypatch.setattr(perf_counters, "_END_S", 0.2)
    with pytest.raises(NoCounters, match=r"perf did not end within 0\.2 s"):
        counted(os.getpid(), lambda: 1)


def test_an_error_of_the_work_is_the_one_that_is_seen(perf: Callable[..., None]) -> None:
    perf(COUNTS)
    with pytest.raises(ZeroDivisionError):
        counted(os.getpid(), lambda: 1 // 0)


def test_a_clock_that_every_machine_has_is_counted_for_each_unit_of_work_or_it_says_why() -> None:
    def work() -> int:
        end = perf_counter() + 0.2
        while perf_counter() < end:
            pass
        return 4

    try:
        counts = counted(os.getpid(), work, ["task-clock"])
    except NoCounters as reason:
        assert re.search("not supported|not counted|does not start|[Aa]ccess", str(reason))  # noqa: PT017
    else:
        # 200 ms of one thread, in four units; a busy machine gives less time.
        assert 5 < counts["task-clock"] < 80


POINT = make_point(n_p=288, n_s=256, n_c=3, kv_heads=2, head_dim=32)


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
