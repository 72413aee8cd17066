from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
import torch
from fake_gpu import FakeDevice, FakeFeed, FakeSession
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.experiment.terms import Mode
from chunkbench.measure.clocks import ClockGuard
from chunkbench.measure.gpu_loop import CaptureError, decode_once, run_gpu_round
from chunkbench.measure.loop import Round
from chunkbench.measure.rotation import calls_of


def measured(
    mode: Mode, copies: int, n_c: int = 3, timed: tuple[int, ...] = (1, 3), sweep: bool = False, **device: Any
) -> tuple[Round, FakeDevice]:
    fake = FakeDevice(**device)
    sessions = [FakeSession(number, fake) for number in range(copies)]

    def sweeping() -> None:
        fake.diary.append(("sweep", None))

    done = run_gpu_round(
        sessions,
        FakeFeed(),
        torch.empty(1),
        n_c,
        timed,
        7,
        mode,
        sweeping if sweep else None,
        fake,
        ClockGuard(None),
    )
    return done, fake


def timed_calls(diary: list[tuple[str, object]]) -> list[list[tuple[int, int, float]]]:
    """What was decoded between each pair of events."""
    found: list[list[Any]] = []
    inside = False
    for word, what in diary:
        if word == "mark":
            inside = not inside
            if inside:
                found.append([])
        elif inside and word == "decode":
            found[-1].append(what)
        elif inside:
            assert word == "replay", "nothing but calls lies between two events"
    return found


@given(st.integers(1, 20), st.sampled_from(["events", "graph"]))
def test_a_sample_between_events_is_the_mean_of_calls_that_rotate_over_all_copies(copies: int, mode: Mode) -> None:
    done, fake = measured(mode, copies)
    calls = calls_of(mode, copies)
    assert done.decode_us == pytest.approx([10.0, 10.0])
    samples = timed_calls(fake.diary)
    assert [len(one) for one in samples] == [calls, calls]
    for step, sample in zip((1, 3), samples, strict=True):
        assert [number for number, _, _ in sample] == [place % copies for place in range(calls)]
        assert {held for _, held, _ in sample} == {step}, "every copy holds the same tokens"


@given(st.integers(1, 20), st.sampled_from(["events", "graph", "eager"]))
def test_between_two_calls_of_a_copy_all_others_are_called(copies: int, mode: Mode) -> None:
    _, fake = measured(mode, copies)
    for word, group in groupby(fake.diary, key=lambda entry: entry[0] in ("append", "plan")):
        called = [what[0] for name, what in group if name == "decode"]  # type: ignore[index]
        if not word and len(called) > copies:
            for place in range(len(called) - copies):
                assert sorted(called[place : place + copies]) == list(range(copies))


@given(st.integers(1, 20))
def test_the_wall_clock_times_another_copy_at_every_step(copies: int) -> None:
    steps = tuple(range(1, 7))
    done, fake = measured("eager", copies, n_c=6, timed=steps)
    assert len(done.decode_us) == 6
    timed = []
    for number, (word, what) in enumerate(fake.diary):
        if (
            word == "decode"
            and fake.diary[number - 1][0] == "synchronise"
            and fake.diary[number + 1][0] == "synchronise"
        ):
            timed.append(what[0])  # type: ignore[index]
    assert len(set(timed)) == min(copies, 6)


@pytest.mark.parametrize("mode", ["events", "graph", "eager"])
def test_every_call_of_a_step_has_queries_of_its_own(mode: Mode) -> None:
    _, fake = measured(mode, 3, n_c=1, timed=(1,))
    asked = [what[2] for word, what in fake.diary if word == "decode"][:-1]  # type: ignore[index]
    assert len(set(asked)) == len(asked), "no input comes twice, so an output that is left over is another one"


@pytest.mark.parametrize("mode", ["events", "graph"])
def test_where_the_cache_is_swept_each_call_has_its_own_events(mode: Mode) -> None:
    done, fake = measured(mode, 1, n_c=1, timed=(1,), sweep=True)
    assert [len(one) for one in timed_calls(fake.diary)] == [1] * calls_of(mode, 1)
    words = [word for word, _ in fake.diary]
    place = words.index("sweep")
    assert words[place : place + 3] == ["sweep", "stall", "mark"], "the sweep is no part of what is timed"
    assert words.count("sweep") == calls_of(mode, 1)
    assert done.decode_us == pytest.approx([10.0])


def test_every_copy_takes_every_step_and_times_are_of_one() -> None:
    done, fake = measured("events", 4, n_c=5, timed=(5,))
    assert [what for word, what in fake.diary if word == "append"] == [0, 1, 2, 3] * 5
    assert [what for word, what in fake.diary if word == "plan"] == [0, 1, 2, 3] * 5
    assert len(done.append_us) == len(done.plan_us) == 5
    assert len(done.decode_us) == 1


def test_graphs_are_captured_anew_at_every_timed_step() -> None:
    """A plan that has changed is no part of an old graph. One graph holds all calls of a sample."""
    _, fake = measured("graph", 2, n_c=4, timed=(1, 2, 4))
    assert [what for word, what in fake.diary if word == "capture"] == [1, 1, 1]
    assert {what for word, what in fake.diary if word == "replay"} == {8}
    _, fake = measured("graph", 1, n_c=1, timed=(1,), sweep=True)
    assert [what for word, what in fake.diary if word == "capture"] == [8]


@pytest.mark.parametrize("mode", ["events", "graph", "eager"])
def test_what_was_timed_is_compared_with_the_same_call_made_again(mode: Mode) -> None:
    done, _ = measured(mode, 2)
    assert done.drift == 0.0
    if mode == "graph":  # replays that computed nothing leave what was captured, with other queries
        done, _ = measured(mode, 2, stale=True)
        assert done.drift > 1e-3


def test_a_decode_that_cannot_be_captured_says_so() -> None:
    with pytest.raises(CaptureError, match="cannot be captured"):
        measured("graph", 1, refuses=lambda: True)


class TestCheck:
    q = torch.tensor([21.0])

    def output(self, mode: Mode, **device: Any) -> float:
        fake = FakeDevice(**device)
        out = torch.empty(1)
        decode_once(FakeSession(0, fake), self.q, out, mode, fake)
        return float(out[0])

    @pytest.mark.parametrize("mode", ["events", "graph", "eager"])
    def test_the_output_is_that_of_the_queries(self, mode: Mode) -> None:
        assert self.output(mode) == 42.0

    def test_a_replay_that_does_nothing_leaves_the_poison(self) -> None:
        assert self.output("graph", stale=True) != self.output("graph", stale=True)  # NaN
