"""The scheduler over real managers: who is admitted, computed, preempted."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from chunkbench.attention.manager import AccountedManager
from chunkbench.attention.text import SegmentText, Text
from chunkbench.server.scheduling import Entry, Rules, Scheduler, Step
from chunkbench.workloads.replay.managers import Contiguous, HashedBlocks, Paged, PrefixManager


@dataclass(eq=False)
class Asked(Entry):
    segments: tuple[tuple[int, int], ...]
    prompt: int
    length: int = 0

    def __post_init__(self) -> None:
        self.length = self.prompt

    @property
    def text(self) -> Text:
        return SegmentText(self.segments, self.prompt)


def private(arrival: int, prompt: int, answer: int) -> Asked:
    return Asked(arrival, ((100 + arrival, prompt), (200 + arrival, answer)), prompt)


def run(scheduler: Scheduler[Asked], step: Step[Asked]) -> None:
    """What follows a step: each sampled sequence gets a token, and those with all of them end."""
    sampled = [*step.decoding, *(piece.entry for piece in step.prompts if piece.sampled)]
    for entry in sampled:
        entry.length += 1
        if entry.length == entry.text.total:
            scheduler.finish(entry)


def test_prompts_are_computed_in_parts_within_the_budget() -> None:
    scheduler: Scheduler[Asked] = Scheduler(Paged(100, 4, 0.0), Rules(max_batch=4, prompt_budget=10))
    first, second = private(0, 14, 3), private(1, 5, 3)
    scheduler.add(first)
    scheduler.add(second)
    step = scheduler.schedule()
    assert [(piece.entry.arrival, piece.first, piece.tokens) for piece in step.prompts] == [(0, 0, 10)]
    run(scheduler, step)
    step = scheduler.schedule()
    assert [(piece.entry.arrival, piece.first, piece.tokens) for piece in step.prompts] == [(0, 10, 4), (1, 0, 5)]
    assert [piece.sampled for piece in step.prompts] == [True, True]
    run(scheduler, step)
    step = scheduler.schedule()
    assert (step.decoding, step.prompts) == ([first, second], [])


def test_decoded_tokens_count_against_the_budget_where_the_rules_say_so() -> None:
    for counts, expected in ((True, 3), (False, 4)):
        rules = Rules(max_batch=4, prompt_budget=4, decode_in_budget=counts)
        scheduler: Scheduler[Asked] = Scheduler(Paged(100, 4, 0.0), rules)
        scheduler.add(private(0, 2, 5))
        run(scheduler, scheduler.schedule())
        scheduler.add(private(1, 20, 5))
        step = scheduler.schedule()
        assert (len(step.decoding), step.prompt_tokens) == (1, expected)


@pytest.mark.parametrize(
    "manager", [Paged(6, 2, 0.0), HashedBlocks(6, 2), PrefixManager(6, 2), PrefixManager(6, 2, True)]
)
def test_the_last_admitted_is_preempted_and_waits_in_front(manager: AccountedManager) -> None:
    scheduler: Scheduler[Asked] = Scheduler(manager, Rules(max_batch=4, prompt_budget=100, spare=False))
    entries = [private(number, 4, 6) for number in range(3)]
    for entry in entries:
        scheduler.add(entry)
    run(scheduler, scheduler.schedule())
    step = scheduler.schedule()
    assert step.preempted == 1
    assert scheduler.running == entries[:2] or scheduler.running == entries[:1]
    assert scheduler.waiting[0] is entries[len(scheduler.running)]
    for _ in range(100):
        run(scheduler, step)
        step = scheduler.schedule()
    assert scheduler.idle
    assert [entry.length for entry in entries] == [10, 10, 10]
    assert manager.slots_held == 0


def test_a_resumed_sequence_whose_last_token_is_left_for_the_next_step() -> None:
    """Its slot is there since it was admitted again: it must not get another one."""
    scheduler: Scheduler[Asked] = Scheduler(PrefixManager(20, 4), Rules(max_batch=2, prompt_budget=8, spare=False))
    entry = private(0, 6, 9)
    scheduler.add(entry)
    for _ in range(3):
        run(scheduler, scheduler.schedule())
    assert entry.length == 9  # one more than the budget
    scheduler._preempt(Step())
    step = scheduler.schedule()
    assert [(piece.first, piece.tokens) for piece in step.prompts] == [(0, 8)]
    run(scheduler, step)
    step = scheduler.schedule()
    assert [(piece.first, piece.tokens) for piece in step.prompts] == [(8, 1)]
    assert step.decoding == []
    run(scheduler, step)
    assert scheduler.schedule().decoding == [entry]


@pytest.mark.parametrize(
    ("manager", "rules"),
    [
        (Contiguous(64, "exact", 40), {}),
        (Paged(10, 4, 0.0), {}),
        (Paged(10, 4, 0.0), {"swap": True}),
        (HashedBlocks(10, 4), {}),
        (PrefixManager(10, 4), {}),
        (PrefixManager(10, 4, True), {}),
    ],
)
def test_sequences_that_grow_by_several_tokens_at_once(manager: AccountedManager, rules: dict[str, bool]) -> None:
    chance = random.Random(2)
    scheduler: Scheduler[Asked] = Scheduler(manager, Rules(max_batch=4, prompt_budget=11, spare=False, **rules))
    entries = [private(number, chance.randrange(1, 12), chance.randrange(2, 24)) for number in range(12)]
    for entry in entries:
        scheduler.add(entry)
    done, preempted, in_parts = dict.fromkeys(entries, 0), dict.fromkeys(entries, 0), 0
    for _ in range(500):
        step = scheduler.schedule()
        for entry, first, tokens in [*step.prompts, *((entry, entry.length - 1, 1) for entry in step.decoding)]:
            if entry.preempted == preempted[entry]:
                assert first == done[entry]  # every token is computed once
            done[entry], preempted[entry] = first + tokens, entry.preempted
            assert len(manager.table(entry.arrival)) * manager.block_tokens >= first + tokens
            in_parts += entry.text.prompt <= first and tokens > 1
        accounts = manager.accounts()
        assert (accounts.capacity, min(vars(accounts).values()) >= 0) == (manager.capacity, True)
        assert accounts.covered >= sum(entry.computed for entry in scheduler.running)
        for entry in [*step.decoding, *(piece.entry for piece in step.prompts if piece.sampled)]:
            entry.length = min(entry.length + chance.choice([1, 1, 3, 6]), entry.text.total)
            if entry.length == entry.text.total:
                scheduler.finish(entry)
        if scheduler.idle:
            break
    assert [entry.length for entry in entries] == [entry.text.total for entry in entries]
    assert (in_parts > 5, sum(preempted.values()) > 0) == (True, not isinstance(manager, Contiguous))
    assert manager.slots_held == 0


def test_a_swapped_sequence_comes_back_before_waiting_ones_and_computes_nothing_again() -> None:
    rules = Rules(max_batch=4, prompt_budget=100, spare=False, swap=True)
    scheduler: Scheduler[Asked] = Scheduler(Paged(5, 2, 0.0), rules)
    first, second = private(0, 4, 3), private(1, 4, 3)
    scheduler.add(first)
    scheduler.add(second)
    run(scheduler, scheduler.schedule())
    step = scheduler.schedule()
    assert (step.preempted, step.swapped_tokens, scheduler.swapped) == (1, 4, [second])
    run(scheduler, step)
    scheduler.add(private(2, 2, 2))
    computed = 0
    while not scheduler.idle:
        step = scheduler.schedule()
        computed += sum(piece.tokens for piece in step.prompts if piece.entry is second)
        assert second not in scheduler.swapped or all(entry.arrival != 2 for entry in scheduler.running)
        run(scheduler, step)
    assert computed == 0
    assert second.length == 7


def test_a_request_that_never_fits_leaves_the_queue_with_a_reason() -> None:
    scheduler: Scheduler[Asked] = Scheduler(Paged(4, 2, 0.0), Rules())
    scheduler.add(private(0, 20, 2))
    fits = private(1, 2, 2)
    scheduler.add(fits)
    step = scheduler.schedule()
    assert [(entry.arrival, "22 tokens" in reason) for entry, reason in step.refused] == [(0, True)]
    assert scheduler.running == [fits]


def test_orders_of_the_queue() -> None:
    manager = PrefixManager(100, 2, retain=True)
    known = Asked(0, ((1, 8), (2, 2), (9, 1)), 10)
    assert manager.allocate(0, known.text, 10) is not None
    manager.extend(0, 10)
    manager.free(0)
    stranger = Asked(1, ((3, 4), (10, 1)), 4)
    part = Asked(2, ((1, 8), (4, 4), (11, 1)), 12)
    whole = Asked(3, ((1, 8), (2, 2), (5, 6), (12, 1)), 16)
    twin = Asked(4, ((3, 4), (6, 1), (13, 1)), 5)
    waiting = [stranger, part, whole, twin]
    assert manager.cached(whole.text) == 10

    def admitted(order: str, manager: PrefixManager = manager) -> list[int]:
        scheduler: Scheduler[Asked] = Scheduler(manager, Rules(order=order))
        return [entry.arrival for entry in scheduler._order(waiting, manager)]

    assert admitted("fcfs") == [1, 2, 3, 4]
    assert admitted("prefix") == [3, 2, 1, 4]
    assert admitted("shortest") == [1, 4, 2, 3]
    assert admitted("depth-first") == [3, 2, 1, 4]
    assert admitted("depth-first", PrefixManager(100, 2)) == [1, 4, 2, 3]
    with pytest.raises(ValueError, match="no order 'random'"):
        Scheduler(manager, Rules(order="random"))
