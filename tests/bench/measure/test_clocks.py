"""None"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.analysis.noise import complaint
from chunkbench.bench.environment.gpu import Clock, Condition
from chunkbench.bench.measure import perf_counters
from chunkbench.bench.measure.clocks import ClockGuard, throttled
from chunkbench.bench.measure.perf_counters import NoCounters, counted, parse
from chunkbench.bench.store.results import GpuState, Noise


class Script:
    """A device whose clock readings come from a list; the last one repeats."""

    def __init__(self, clocks: Iterable[int | None], reasons: int = 0) -> None:
        self.clocks, self.reasons = list(clocks), reasons

    def clock(self) -> Clock:
        return Clock(self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0], self.reasons)

    def condition(self) -> Condition:
        return Condition(2619, 350.5, 61, 0, 0)


def test_below_75_percent_of_the_median_is_throttled() -> None:
    usual = [300, 1980, 1980, 1980, 1980]
    assert throttled(1484, usual)
    assert not throttled(1485, usual)
    assert not throttled(100, []), "no clock can be throttled before the usual clock is known"


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


def test_counts_are_read() -> None:
    assert parse(PRINTED) == {"cycles": 2e6, "instructions": 5e6, "task-clock": 12.5}


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("<not supported>,,cycles,0,100.00,,\n", "cycles not supported here"),
        ("<not counted>,,cycles,0,0.00,,\n", "cycles not counted here"),
        (
            "Error:\nAccess to performance monitoring and observability operations is limited.\n",
            "Access to performance",
        ),
        ("event syntax error: 'cycles,foo'\n   \\___ parser error\n", "event syntax error"),
        ("event syntax error: 'cyclesx,instructions,cache-references,cache-misses,dTLB..'\n", "event syntax error"),
        ("", "printed nothing"),
        *((f"{value},,cycles,5,100.00,,\n", f"{value} cycles: not a count") for value in ("nan", "inf", "-inf", "-1")),
    ],
)
def test_what_is_no_count_says_why(printed: str, told: str) -> None:
    with pytest.raises(NoCounters, match=told):
        parse(printed)


def test_a_machine_without_perf_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCounters, match="perf does not start: No such file"):
        counted(os.getpid(), lambda: 1)


@pytest.mark.parametrize("deaf", ["true", "-p"])
def test_a_perf_that_does_not_end_is_ended(deaf: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    perf.write_text(
        f"""#!/bin/sh
        echo 5,,cycles,5,100.00,, >&2
        trap "" INT
        for word; do if [ "$word" = {deaf} ]; then sleep 100; fi; done
        """
    )
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(perf_counters, "_END_S", 0.2)
    with pytest.raises(NoCounters, match=r"perf did not end within 0\.2 s"):
        counted(os.getpid(), lambda: 1)


def test_an_error_of_the_work_is_the_one_that_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\necho 5,,cycles,5,100.00,, >&2\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ZeroDivisionError):
        counted(os.getpid(), lambda: 1 // 0)


def test_this_machine_counts_or_says_why() -> None:
    try:
        counts, reason = counted(os.getpid(), lambda: 1), ""
    except NoCounters as error:
        counts, reason = {}, str(error)
    assert counts.get("cycles") or re.search("not supported|not counted|does not start|[Aa]ccess", reason), reason


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_a_clock_that_every_machine_has_is_counted_for_each_unit_of_work() -> None:
    def work() -> int:
        end = perf_counter() + 0.2
        while perf_counter() < end:
            pass
        return 4

    try:
        counts = counted(os.getpid(), work, ["task-clock"])
    except NoCounters as reason:
        pytest.skip(f"not permitted here: {reason}")
    # 200 ms of one thread, in four units; a busy machine gives less time.
    assert 5 < counts["task-clock"] < 80
