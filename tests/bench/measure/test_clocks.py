from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.analysis.noise import complaint
from chunkbench.bench.environment.gpu import Clock, Condition
from chunkbench.bench.measure.clocks import ClockGuard, throttled
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
