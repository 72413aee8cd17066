"""The prefix tree as a manager, without and with retention: examples, and random operations against contents."""

from __future__ import annotations

import random

import pytest

from chunkbench.attention.errors import UnknownSequence
from chunkbench.attention.text import SegmentText, TokenText
from chunkbench.workloads.replay.managers import Accounts, NeverFits, PrefixManager, Reads


def text(*parts: tuple[int, int], prompt: int | None = None) -> SegmentText:
    """Segments; without `prompt`, all of them."""
    return SegmentText(parts, sum(tokens for _, tokens in parts) if prompt is None else prompt)


def run(manager: PrefixManager, sequence: int, one: SegmentText) -> int | None:
    """Join, compute the whole prompt, leave. Returns the cached tokens."""
    cached = manager.allocate(sequence, one, one.prompt)
    if cached is not None:
        assert manager.extend(sequence, one.prompt)
        manager.free(sequence)
    return cached


def test_live_sequences_share_and_nothing_stays() -> None:
    manager = PrefixManager(10, 4)
    first, second = text((1, 8), (2, 3), (9, 5), prompt=11), text((1, 8), (3, 6))
    assert manager.allocate(1, first, 11) == 0
    assert manager.computed_tokens(1) == 0
    assert manager.allocate(2, second, 14) == 0  # the chunks are there, their K and V are not
    assert manager.extend(1, 8)
    assert (manager.computed_tokens(2), manager.cached(second)) == (8, 12)
    assert manager.extend(1, 11)
    assert manager.extend(2, 14)
    assert manager.reads() == Reads(private=9, shared=8, shared_covered=16)
    assert manager.accounts() == Accounts(17, 1, 2, 0, 0, 20, 25)
    assert manager.slots_held == 20
    manager.free(1)
    assert manager.cached(second) == 12
    manager.free(2)
    assert manager.cached(second) == 0
    assert manager.accounts() == Accounts(0, 0, 0, 0, 0, 40, 0)


def test_what_finished_sequences_leave_is_found_and_evicted_least_recently_used_first() -> None:
    manager = PrefixManager(6, 2, retain=True)
    assert run(manager, 1, text((1, 4), (9, 1))) == 0
    assert run(manager, 2, text((2, 4))) == 0
    assert manager.accounts() == Accounts(0, 0, 0, 0, 8, 4, 0)
    assert run(manager, 3, text((1, 4), (8, 1))) == 4  # used again: now the second one is older
    assert run(manager, 4, text((4, 6))) == 0
    assert (manager.cached(text((1, 5))), manager.cached(text((2, 5)))) == (4, 0)
    assert manager.evictions == 2


def test_leaves_are_evicted_before_what_they_hang_on() -> None:
    manager = PrefixManager(4, 2, retain=True)
    run(manager, 1, text((1, 2), (2, 2)))
    run(manager, 2, text((1, 2), (3, 2)))
    assert run(manager, 3, text((4, 4))) == 0  # takes the free chunk and the oldest leaf
    assert [manager.cached(text((1, 2), (last, 9))) for last in (2, 3)] == [2, 4]


def test_a_join_never_evicts_what_it_finds_and_changes_nothing_if_it_is_refused() -> None:
    manager = PrefixManager(4, 2, retain=True)
    run(manager, 1, text((1, 4)))
    assert manager.allocate(2, text((2, 4)), 4) == 0
    before = manager.accounts()
    assert manager.allocate(3, text((1, 4), (3, 2)), 6) is None
    assert manager.accounts() == before
    assert manager.cached(text((1, 9))) == 4
    manager.free(2)
    assert manager.allocate(3, text((1, 4), (3, 2)), 6) == 4


def test_only_what_was_computed_stays() -> None:
    manager = PrefixManager(8, 2, retain=True)
    one = text((1, 9))
    assert manager.allocate(1, one, 9) == 0
    assert manager.extend(1, 5)
    manager.free(1)
    assert manager.cached(one) == 4
    assert manager.allocate(2, one, 9) == 4


def test_misuse() -> None:
    manager = PrefixManager(2, 2)
    with pytest.raises(NeverFits, match="5 tokens need 3 chunks"):
        manager.allocate(1, text((1, 5)), 5)
    manager.allocate(1, text((1, 2)), 2)
    with pytest.raises(ValueError, match="lives already"):
        manager.allocate(1, text((1, 2)), 2)
    for call in (manager.computed_tokens, manager.free, manager.table):
        with pytest.raises(UnknownSequence):
            call(7)


POOLS = [(14, 3), (30, 1), (9, 4)]
"""Chunks, and tokens of a chunk."""


class Contents:
    """What each chunk holds, by what the manager says. Reading a chunk that holds something else is an error."""

    def __init__(self, manager: PrefixManager) -> None:
        self.manager = manager
        self.tokens: dict[int, list[int]] = {}

    def fill(self, sequence: int, one: TokenText, first: int, last: int) -> None:
        size, table = self.manager.block_tokens, self.manager.table(sequence)
        for place in range(first, last):
            held = self.tokens.setdefault(table[place // size], [])
            if len(held) == place % size:
                held.append(one.ids[place])

    def check(self, sequence: int, one: TokenText, tokens: int) -> None:
        size, table = self.manager.block_tokens, self.manager.table(sequence)
        for place in range(tokens):
            assert self.tokens[table[place // size]][place % size] == one.ids[place]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize(("chunks", "size"), POOLS)
def test_random_operations_never_read_what_was_given_away(chunks: int, size: int, retain: bool) -> None:
    """Many more operations: `make torture PART=forests`."""
    manager = PrefixManager(chunks, size, retain)
    counts = random_operations(manager, random.Random(f"{chunks} {size} {retain}"), 1500)
    assert all(counts.values()), counts
    assert bool(manager.evictions) == retain


def random_operations(manager: PrefixManager, chance: random.Random, operations: int) -> dict[str, int]:
    """Operations on an empty manager, whose contents are checked. Returns how often the rarer ones happened."""
    size = manager.block_tokens
    contents = Contents(manager)
    live: dict[int, tuple[TokenText, int, int]] = {}  # text, tokens, computed tokens
    stems = [[chance.randrange(2) for _ in range(24)] for _ in range(2)]
    counts = dict.fromkeys(("joined", "refused", "cached", "appended", "grown", "preempted"), 0)
    for number in range(operations):
        what = chance.choice(("allocate", "extend", "append", "append", "grow", "free"))
        if what == "allocate" and len(live) < 6:
            ids = chance.choice(stems)[: chance.randrange(1, 20)] + [chance.randrange(2) for _ in range(8)]
            one = TokenText(ids, len(ids) - 6, len(ids))
            before = manager.accounts()
            cached = manager.allocate(number, one, one.prompt)
            if cached is None:
                assert manager.accounts() == before
                assert -(-one.prompt // size) * size > before.free
                counts["refused"] += 1
                continue
            contents.check(number, one, cached // size * size)
            for chunk in manager.table(number)[manager.computed_tokens(number) // size :]:
                shared = any(chunk in manager.table(other) for other in live)
                if not shared:
                    contents.tokens[chunk] = []
            live[number] = one, one.prompt, cached
            counts["joined"] += 1
            counts["cached"] += cached
        elif what == "extend" and live:
            name = chance.choice(list(live))
            one, tokens, computed = live[name]
            computed = max(computed, manager.computed_tokens(name))
            contents.check(name, one, computed // size * size)
            if computed < tokens:
                to = chance.randrange(computed + 1, tokens + 1)
                assert manager.extend(name, to)
                contents.fill(name, one, computed, to)
                computed = to
            live[name] = one, tokens, computed
        elif what == "append" and live:
            ready = [name for name, (one, tokens, done) in live.items() if done == tokens < one.total]
            before = {name: list(manager.table(name)) for name in ready}
            if ready and manager.append(ready):
                for name in ready:
                    one, tokens, _ = live[name]
                    table = manager.table(name)
                    if len(table) > len(before[name]):
                        contents.tokens[table[-1]] = []
                    contents.fill(name, one, tokens, tokens + 1)
                    live[name] = one, tokens + 1, tokens + 1
                    counts["appended"] += 1
            elif ready:
                manager.free(ready[-1])
                del live[ready[-1]]
                counts["preempted"] += 1
        elif what == "grow" and live:
            name = chance.choice(list(live))
            one, tokens, done = live[name]
            before = list(manager.table(name))
            more = chance.randrange(1, 5)
            if done == tokens <= one.total - more and manager.grow(name, more):
                contents.tokens.update((chunk, []) for chunk in manager.table(name)[len(before) :])
                live[name] = one, tokens + more, done
                counts["grown"] += 1
            else:
                assert manager.table(name) == before
        elif what == "free" and live:
            name = chance.choice(list(live))
            one, _, computed = live.pop(name)
            contents.check(name, one, computed)
            manager.free(name)
        accounts = manager.accounts()
        assert accounts.capacity == manager.capacity
        assert min(vars(accounts).values()) >= 0
        held = {chunk for name in live for chunk in manager.table(name)}
        assert manager.slots_held == len(held) * size
        assert accounts.covered == sum(tokens for _, tokens, _ in live.values())
        readers = [sum(chunk in manager.table(name) for name in live) for chunk in held]
        assert manager.reads().shared == sum(n > 1 for n in readers) * size
        assert manager.reads().shared_covered == sum(n for n in readers if n > 1) * size
    for name in list(live):
        manager.free(name)
    assert manager.accounts().evictable + manager.accounts().free == manager.capacity
    return counts


def test_a_join_that_leaves_too_little_to_spare_evicts_nothing() -> None:
    manager = PrefixManager(6, 2, retain=True)
    run(manager, 1, text((1, 4)))
    assert manager.allocate(2, text((2, 2)), 2) == 0
    before = manager.accounts()
    assert manager.allocate(3, text((3, 8)), 8, spare=2) is None
    assert (manager.accounts(), manager.cached(text((1, 9))), manager.evictions) == (before, 4, 0)
    assert (
        manager.allocate(3, text((3, 6)), 6, spare=2) == 0
    )  # three chunks were free; the two evictable ones are to spare
    assert manager.evictions == 0
