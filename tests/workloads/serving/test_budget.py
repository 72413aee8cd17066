"""The plan of a run of servers fits the budget; its steps are read from their log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.workloads.serving.budget import Costs, Cut, Part, fit, took_s
from chunkbench.workloads.serving.memory import plan_memory
from chunkbench.workloads.serving.result import ServerFacts, ServingPoint
from chunkbench.workloads.serving.servers.chunk_llama import StepLog

GIB = 1 << 30
seconds = st.floats(0, 100)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    fewest_requests, fewest_seeds = draw(st.integers(1, 8)), draw(st.integers(0, 2))
    requests, seeds = fewest_requests + draw(st.integers(0, 40)), fewest_seeds + draw(st.integers(0, 3))
    return Part(requests, fewest_requests, seeds, fewest_seeds, draw(seconds), draw(seconds), draw(seconds))


@given(st.lists(parts(), max_size=6), st.floats(0, 20_000))
def test_what_is_kept_fits_and_is_cut_in_order(left: list[Part], left_s: float) -> None:
    cuts = fit(left, left_s)
    assert len(cuts) == len(left)
    kept = [number for number, cut in enumerate(cuts) if cut != Cut(0, 0)]
    assert kept == list(range(len(kept)))  # points go from the last on
    assert took_s(left, cuts) <= left_s or not kept
    for part, cut in zip(left[: len(kept)], cuts, strict=False):
        assert part.fewest_requests <= cut.requests <= part.requests
        assert part.fewest_seeds <= cut.seeds <= part.seeds
    chosen = list(zip(left, cuts, strict=True))[: len(kept)]
    if any(cut.seeds < part.seeds for part, cut in chosen):  # seeds go only when the fewest requests are too many
        assert took_s(left, [part.cut(0, 0) for part in left[: len(kept)]]) > left_s
    if len(kept) < len(left):  # and points only at the fewest requests and seeds
        assert took_s(left, [part.cut(0, part.seeds) for part in left[: len(kept) + 1]]) > left_s


@given(st.lists(parts(), min_size=1, max_size=4))
def test_a_long_budget_cuts_nothing(left: list[Part]) -> None:
    assert fit(left, 1e9) == [Cut(part.requests, part.seeds) for part in left]


def test_the_order_of_cuts() -> None:
    """Two points; each request of a seed takes a second, each seed two more, each point ten more."""
    left = [Part(24, 8, 3, 2, once_s=10, seed_s=2, request_s=1)] * 2
    assert fit(left, 176) == [Cut(24, 3)] * 2
    assert fit(left, 80) == [Cut(8, 3)] * 2
    assert fit(left, 79) == [Cut(12, 2)] * 2
    assert fit(left, 60) == [Cut(8, 2)] * 2
    assert fit(left, 59) == [Cut(14, 3), Cut(0, 0)]
    assert fit(left, 29) == [Cut(0, 0)] * 2


def point(load: int, n_s: int = 0) -> ServingPoint:
    return ServingPoint(n_p=100, n_s=n_s, n_c=8, load=load, batch_size=4, device="cpu", dtype="float32")


def test_costs_are_learned() -> None:
    costs = Costs({"a": 15, "b": 15}, lambda point: 2.0)
    assert costs.one_s("r", point(80)) == 2.0
    costs.learn_capacity("r", point(80), 2.0)  # four times as fast as assumed
    assert costs.one_s("r", point(80)) == 0.5
    assert costs.one_s("other", point(80)) == 0.5
    assert costs.gap_s("r", point(50)) == 1.0
    # A system that keeps up: a request adds the gap to the next one; the last answer takes as long as any.
    costs.learn_turn("a", "r", point(50), 8, last_due=7.0, took_s=9.0, fastest_s=2.0)
    assert costs.turn("a", "r", point(50)) == pytest.approx((2.0, 1.0))
    # One that does not: what it is behind at the end grows with the requests.
    costs.learn_turn("b", "r", point(200), 8, last_due=1.75, took_s=9.75, fastest_s=2.0)
    assert costs.turn("b", "r", point(200)) == pytest.approx((2.0, 1.0))
    # Elsewhere a system is as slow as it was seen, in requests of the reference.
    assert costs.turn("b", "other", point(200)) == pytest.approx((2.0, 1.0))
    costs.learn_capacity("other", point(200), 1.0)
    assert costs.turn("b", "other", point(200)) == pytest.approx((4.0, 2.0))


def plan(room: float, asked: float = 4, needed: float = 4, **besides: float | None) -> tuple[object, ...]:
    sizes = {name: None if size is None else int(size * GIB) for name, size in besides.items()}
    found = plan_memory(sizes, int(asked * GIB), int(needed * GIB), "c", "v", int(room * GIB))
    assert bool(found.told) == ((found.kv_bytes, len(found.groups), len(found.too_large)) != (asked * GIB, 1, 0))
    return round(found.kv_bytes / GIB, 3), found.groups, list(found.too_large)


def test_servers_that_fit_together_get_what_was_asked() -> None:
    assert plan(20, v=1, p=1, c=1, r=1) == (4, (("v", "p", "c", "r"),), [])


def test_more_than_a_full_batch_needs_is_cut_for_all_alike() -> None:
    assert plan(14, needed=2, v=1, p=1, c=1, r=1) == (2.5, (("v", "p", "c", "r"),), [])


def test_groups_share_the_baseline_and_the_first_has_the_reference() -> None:
    assert plan(16, v=1, p=1, c=1, r=1) == (4, (("c", "v", "r"), ("c", "p")), [])
    assert plan(11, p=1, v=1, c=1) == (4, (("c", "v"), ("c", "p")), [])


def test_a_server_elsewhere_takes_no_memory() -> None:
    assert plan(5, c=1, e=None) == (4, (("c", "e"),), [])


def test_what_does_not_fit_alone_is_named_with_what_is_missing() -> None:
    found = plan_memory({"c": GIB, "v": 4 * GIB}, 4 * GIB, 4 * GIB, "c", "v", 6 * GIB)
    assert found.groups == (("c",),)
    assert found.too_large == {"v": "needs 8.6 GB, 6.4 GB are available: 2.1 GB are missing"}


@given(
    st.lists(st.integers(0, 4 * GIB) | st.none(), min_size=1, max_size=6),
    st.integers(1, 8 * GIB),
    st.integers(1, 8 * GIB),
    st.integers(0, 40 * GIB),
)
def test_no_group_needs_more_than_there_is(sizes: list[int | None], asked: int, needed: int, room: int) -> None:
    besides = dict(zip("cvprst", sizes, strict=False))
    found = plan_memory(besides, asked, needed, "c", "v", room)
    assert min(asked, needed) <= found.kv_bytes <= asked
    for group in found.groups:
        assert sum(size + found.kv_bytes for name in group if (size := besides[name]) is not None) <= room
    measured = [name for group in found.groups for name in group if name != "c"]
    assert sorted([*measured, *(set(found.too_large) - {"c"})]) == sorted(set(besides) - {"c"})


def test_steps_in_a_window_and_the_idle_time_between_them(tmp_path: Path) -> None:
    steps = [(1.0, 1), (2.0, 2), (2.1, 3), (5.0, 4), (9.0, 5)]
    fields = {"s": 0.1, "overhead_s": 0.01, "tree_s": 0.002, "prompt_tokens": 7, "kv_bytes": 64}
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({**fields, "ended": ended, "batch": batch}) + "\n" for ended, batch in steps))
    moments = StepLog(path).between(1.5, 6.0)
    assert [(moment.at, moment.batch) for moment in moments] == [(2.0, 2), (2.1, 3), (2.1, 0), (4.9, 0), (5.0, 4)]
    assert [moment.kv_bytes for moment in moments] == [64, 64, 0, 0, 64]
    assert [moment.seconds for moment in moments] == [0.1, 0.1, None, None, 0.1]
    facts = ServerFacts.of(moments, 1.5, sampled=False)
    assert facts is not None
    assert (facts.steps, facts.overhead_s, facts.tree_s) == (3, 0.01, 0.002)
