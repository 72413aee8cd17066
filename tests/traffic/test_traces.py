"""Arrivals, prompts and the load's own files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.traffic import Arrivals, Prompts, TraceError, draw_prompts, due_times, read_traffic


def gaps(arrivals: Arrivals, rate: float = 2.0, seed: int = 1) -> list[float]:
    times = due_times(arrivals, rate, 4000, seed)
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize(
    ("arrivals", "spread"),
    [
        (Arrivals("poisson"), 1),
        (Arrivals("gamma", 0.001), 0.001),
        (Arrivals("gamma", 0.5), 0.5),
        (Arrivals("gamma", 2), 2),
        (Arrivals("gamma"), 1),
        (Arrivals("constant"), 0),
    ],
)
def test_gaps_have_the_mean_and_the_spread_asked_for(arrivals: Arrivals, spread: float) -> None:
    drawn = gaps(arrivals)
    assert fmean(drawn) == pytest.approx(0.5, rel=0.1)
    assert pstdev(drawn) / fmean(drawn) == pytest.approx(spread, rel=0.1, abs=1e-9)


def test_a_rate_stretches_the_same_sequence() -> None:
    slow, fast = gaps(Arrivals(), 1.0), gaps(Arrivals(), 4.0)
    assert slow == pytest.approx([4 * gap for gap in fast], abs=1e-9)
    assert gaps(Arrivals(), seed=2) != gaps(Arrivals(), seed=1)


def test_the_first_request_is_due_at_once() -> None:
    assert due_times(Arrivals(), 3.0, 1, 0) == [0.0]
    assert due_times(Arrivals(), 3.0, 0, 0) == []


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_is_above_zero(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        due_times(Arrivals(), rate, 3, 0)


@pytest.mark.parametrize("spread", [0.0, -1.0, float("nan"), 1e-320, 1e-4, 1e308, float("inf")])
def test_a_spread_is_one_that_can_be_drawn(spread: float) -> None:
    with pytest.raises(ValueError, match=r"the spread of arrivals must be from 0\.001 to 1000"):
        Arrivals("gamma", spread)


def common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Leading tokens that two prompts share."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@given(st.integers(1, 80), st.integers(0, 80), st.integers(1, 3), st.integers(0, 5))
def test_prompts_share_what_is_asked_for_and_no_more(n_p: int, n_s: int, prompts: int, seed: int) -> None:
    if n_s > n_p:
        with pytest.raises(ValueError, match="do not fit"):
            Prompts(n_p, n_s, prompts)
        return
    drawn = draw_prompts(Prompts(n_p, n_s, prompts), 9, 1000, seed)
    assert {len(prompt) for prompt in drawn} == {n_p}
    for i, first in enumerate(drawn):
        for j, second in enumerate(drawn[:i]):
            if (i - j) % prompts == 0:
                assert common(first, second) == n_s


def test_a_tree_of_prefixes() -> None:
    tree = Prompts(40, tree=((10, ((8, 2), (8, 1))),))
    drawn = draw_prompts(tree, 6, 1000, 0)
    assert [common(drawn[0], other) for other in drawn[1:]] == [18, 10, 18, 18, 10]
    with pytest.raises(ValueError, match="44 shared tokens do not fit into prompts of n_p = 40"):
        Prompts(40, tree=((44, 2),))


def test_another_seed_shares_nothing_with_the_first() -> None:
    old, new = (draw_prompts(Prompts(64, 64), 1, 1000, seed)[0] for seed in (1, 2))
    assert common(old, new) < 4


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_a_file_is_read_and_sorted(tmp_path: Path) -> None:
    lines = [{"prompt": [1, 2], "max_tokens": 3, "due": due} for due in (2.5, 0.5)]
    trace = read_traffic(write(tmp_path / "t.jsonl", *lines, ""))
    assert trace.timed
    assert [(r.due, r.prompt, r.answer_tokens) for r in trace.requests] == [(0.5, (1, 2), 3), (2.5, (1, 2), 3)]
    assert read_traffic(write(tmp_path / "u.jsonl", {"prompt": [1], "max_tokens": 1})).timed is False


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "t.jsonl:1: not JSON"),
        ([{"prompt": [1], "max_tokens": 1}, {"prompt": [], "max_tokens": 1}], "t.jsonl:2: prompt"),
        ([{"prompt": "text", "max_tokens": 1}], "t.jsonl:1: prompt"),
        ([{"prompt": [1], "max_tokens": 0}], "t.jsonl:1: max_tokens"),
        ([{"prompt": [1], "max_tokens": 1, "due": -1}], "t.jsonl:1: due"),
        ([{"prompt": [1], "max_tokens": 1}, [1]], "t.jsonl:2: the line"),
        ([{"prompt": [1], "max_tokens": 1, "due": 1}, {"prompt": [1], "max_tokens": 1}], "some requests have `due`"),
        ([], "has no request"),
    ],
)
def test_a_broken_file_says_where(tmp_path: Path, lines: list[object], message: str) -> None:
    with pytest.raises(TraceError, match=message.replace("[", r"\[")):
        read_traffic(write(tmp_path / "t.jsonl", *lines))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_traffic(tmp_path / "none.jsonl")


def test_fields_that_mean_nothing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"prompt": [1], "max_tokens": 1, "tenant": "a", "a\n::error::b": 1}))
    assert read_traffic(path).notes == (
        "the file does not say when requests are due",
        r"fields that are not read: 'tenant', 'a\n::error::b'",
    )
