"""Replays worked out by hand, and bounds that no replay may pass."""

from __future__ import annotations

import random

import pytest

from chunkbench.attention.manager import AccountedManager
from chunkbench.server.scheduling import Rules
from chunkbench.workloads.replay.managers import Contiguous, HashedBlocks, Paged, PrefixManager
from chunkbench.workloads.replay.simulate import Stuck, replay
from chunkbench.workloads.replay.step_time import Constant, WithSwaps
from tests.workloads.replay.requests import request


def test_times_of_two_requests() -> None:
    """Steps of 1 s. The second request comes within the first step and starts with the second one."""
    made = [request(0, (1, 6), answer=3, number=0), request(0.5, (2, 10), answer=2, number=1)]
    done = replay(made, Paged(50, 4, 0.0), Rules(max_batch=2, prompt_budget=8), Constant(1.0))
    first, second = done.requests
    assert (first.first, first.last) == (1.0, 3.0)
    assert (second.first, second.last) == (3.0, 4.0)  # its prompt takes two steps
    assert (done.steps, done.end, done.computed_tokens, done.peak_batch) == (4, 4.0, 16, 2)
    assert done.peak_slots == 20


def test_an_idle_server_waits_for_the_next_request() -> None:
    made = [request(0, (1, 2), answer=1, number=0), request(9.25, (2, 2), answer=1, number=1)]
    done = replay(made, Paged(50, 4, 0.0), Rules(), Constant(0.5))
    assert [one.last for one in done.requests] == [0.5, 9.75]


def test_the_mean_batch_counts_until_the_last_request_is_due() -> None:
    """Steps of 1 s: one request until 1, nobody until 2, one until 5, and half a second of that is after 4.5."""
    dues = ((0.0, 1), (2.0, 3), (4.5, 9))
    made = [request(due, (n, 2), answer=answer, number=n) for n, (due, answer) in enumerate(dues)]
    assert replay(made, Paged(50, 4, 0.0), Rules(), Constant(1.0)).mean_batch == pytest.approx((1 + 2.5) / 4.5)
    assert replay(made[:1], Paged(50, 4, 0.0), Rules(), Constant(1.0)).mean_batch == 0


def test_swapping_takes_the_time_of_its_copies() -> None:
    """All requests are due at once, so the time of a step changes nothing but the end."""
    made = [request(0, (n, 9), answer=20, number=n) for n in range(6)]
    ends = {}
    for token_s in (0.0, 0.5):
        manager = Paged(20, 4, 0.0)
        step_time = WithSwaps(Constant(1.0), token_s, "copied slowly")
        done = replay(made, manager, Rules(swap=True), step_time)
        assert done.preemptions > 0
        assert done.computed_tokens == 6 * 9  # nothing is computed again
        assert manager.slots_held == 0
        ends[token_s] = done
    assert ends[0.5].swapped_tokens == ends[0.0].swapped_tokens > 0
    assert ends[0.5].end == ends[0.0].end + 0.5 * ends[0.0].swapped_tokens


def test_a_request_that_never_fits_is_refused_and_costs_the_others_nothing() -> None:
    made = [request(0, (1, 200), answer=5, number=0), request(0, (2, 4), answer=1, number=1)]
    done = replay(made, Paged(10, 4, 0.0), Rules(), Constant(1.0))
    assert "205 tokens" in done.requests[0].refused
    assert done.requests[0].last is None
    assert done.requests[1].last == 1.0


def test_a_manager_that_admits_nobody_is_an_error() -> None:
    class Full(Paged):
        def allocate(self, sequence: int, text: object, known: int, spare: int = 0) -> None:
            return None

    with pytest.raises(Stuck, match="1 requests wait"):
        replay([request(0, (1, 4), answer=1, number=0)], Full(10, 4, 0.0), Rules(), Constant(1.0))


@pytest.mark.parametrize(
    "manager",
    [
        Contiguous(300, "max", 60), Contiguous(300, "pow2", 60), Contiguous(300, "exact", 60), Paged(75, 4),
        HashedBlocks(75, 4), PrefixManager(75, 4), PrefixManager(75, 4, retain=True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["fcfs", "prefix", "depth-first", "shortest"])
def test_every_request_gets_its_tokens_and_nothing_stays(manager: AccountedManager, order: str) -> None:
    chance = random.Random(order)
    made = [
        request(n * 0.7, (n % 3, 12), (10 + n, chance.randrange(1, 20)), answer=chance.randrange(1, 25), number=n)
        for n in range(60)
    ]
    done = replay(made, manager, Rules(max_batch=20, prompt_budget=30, order=order), Constant(1.0))
    for one in done.requests:
        assert one.last is not None
        assert one.first is not None
        assert one.length == one.text.total
        assert one.request.due < one.first <= one.last
        # A token a step at most.
        assert one.last - one.first >= one.request.answer - 1
    assert manager.slots_held == 0
    assert all(moment.accounts.capacity == manager.capacity for moment in done.moments)
    assert done.peak_slots <= manager.capacity


def test_depth_first_computes_each_token_of_the_radix_tree_once() -> None:
    """RadixAttention's lower bound: all requests known, page size 1, a cache of the longest request, one at a time. The
    last token of a prompt, which is computed for its logits, does not count where it was cached."""
    chance = random.Random(3)
    trees = 0
    for _ in range(30):
        paths: list[list[tuple[int, int]]] = [[(1, chance.randrange(1, 6))]]
        for segment in range(2, 30):
            parent = chance.choice(paths)
            paths.append([*parent[: chance.randrange(len(parent) + 1)], (segment, chance.randrange(1, 8))])
        chance.shuffle(paths)
        made = [request(0, *path, answer=1, number=number) for number, path in enumerate(paths)]
        longest = max(one.text.total for one in made)
        edges = sum(dict(segment for path in paths for segment in path).values())
        manager = PrefixManager(longest, 1, retain=True)
        rules = Rules(max_batch=1, prompt_budget=10**6, order="depth-first", spare=False)
        done = replay(made, manager, rules, Constant(1.0))
        again = sum(one.cached_tokens == one.text.prompt - 1 for one in done.requests)
        assert edges <= done.computed_tokens <= edges + again
        by_arrival = replay(made, PrefixManager(longest, 1, retain=True), Rules(1, 10**6, spare=False), Constant(1.0))
        trees += by_arrival.computed_tokens > done.computed_tokens
    assert trees > 20
