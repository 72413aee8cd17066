"""Which blocks policies take: against exhaustive search, against each other, and by example."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import cache

import pytest

from chunkbench.attention.errors import UnknownSequence
from chunkbench.attention.text import Text, TokenText
from chunkbench.server.scheduling import Rules
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.managers import Accounts, NeverFits, PrefixManager, policies
from chunkbench.workloads.replay.managers.hashed import HashedBlocks
from chunkbench.workloads.replay.managers.policies import Adaptive, Belady, LeastFrequent
from chunkbench.workloads.replay.managers.policy_blocks import Policy, PolicyBlocks
from chunkbench.workloads.replay.simulate import replay
from chunkbench.workloads.replay.step_time import Constant
from tests.workloads.replay.managers.reference import SlowPolicy
from tests.workloads.replay.managers.test_against_reference import Both, drawn, segments
from tests.workloads.replay.managers.test_against_reference import run as run_segments

Name = tuple[int, ...]


def text(tokens: Sequence[int], answer: int = 1) -> TokenText:
    """A text whose last `answer` tokens are the answer."""
    return TokenText(tuple(tokens), len(tokens) - answer, len(tokens))


def conversations(chance: random.Random, count: int, longest: int) -> list[Text]:
    """Texts that begin as one before them did, often with its answer, and end with an answer."""
    said: list[Name] = [()]
    texts: list[Text] = []
    while len(texts) < count:
        before = chance.choice(said)
        before = before[: chance.randint(0, len(before))] if chance.random() < 0.5 else before
        tokens = (*before, *chance.choices((0, 1), k=chance.randint(2, 6)))
        if len(tokens) <= longest:
            said.append(tokens)
            texts.append(text(tokens, chance.randint(1, min(4, len(tokens) - 1))))
    return texts


def found(texts: Sequence[Text], blocks: int, size: int, policy: Policy | None = None) -> int:
    """Prompt tokens that are found; least recently used without a policy."""
    manager = HashedBlocks(blocks, size, policy and PolicyBlocks(blocks, policy))
    done = replay([ReplayRequest(0.0, one) for one in texts], manager, Rules(1, 5), Constant(1.0))
    assert done.preemptions == 0
    return sum(one.cached_tokens or 0 for one in done.requests)


def most(texts: Sequence[Text], blocks: int, size: int) -> int:
    """The most tokens that are found, over all choices of blocks to take. Names are all tokens up to a block's end."""
    names = [[tuple(one.tokens(0, end).tolist()) for end in range(size, one.total, size)] for one in texts]

    @cache
    def begin(number: int, kept: frozenset[Name]) -> int:
        if number == len(texts):
            return 0
        hits = 0
        while hits < (texts[number].prompt - 1) // size and names[number][hits] in kept:
            hits += 1
        return hits * size + go_on(number, hits * size, hits, kept - set(names[number][:hits]), blocks - len(kept))

    @cache
    def go_on(number: int, tokens: int, table: int, free: frozenset[Name], nameless: int) -> int:
        """The most from here on. `tokens` have K and V in `table` blocks."""
        one = texts[number]
        if tokens == one.total - 1:
            return begin(number + 1, free | set(names[number]))
        ahead = min(tokens + 5, one.prompt) if tokens < one.prompt else tokens + 1  # the replay's pieces of prompts
        if table * size < ahead:
            if nameless:
                return go_on(number, tokens, table + 1, free, nameless - 1)
            return max(go_on(number, tokens, table + 1, free - {gone}, 0) for gone in free)
        copies = free & set(names[number][tokens // size : ahead // size])
        return go_on(number, ahead, table, free - copies, nameless + len(copies))

    return begin(0, frozenset())


def test_belady_is_the_best_of_all_choices() -> None:
    better = 0
    for seed in range(100):
        chance = random.Random(seed)
        size, blocks = chance.choice((1, 2, 2, 3)), chance.randint(4, 6)
        texts = conversations(chance, 9, blocks * size)
        best = most(texts, blocks, size)
        assert found(texts, blocks, size, Belady(texts, size)) == best, seed
        better += found(texts, blocks, size) < best
    assert better > 30  # the choices matter


def test_no_policy_finds_more_than_belady() -> None:
    for seed, size in enumerate((1, 4, 4, 16)):
        texts = conversations(random.Random(seed), 200, 50)
        blocks = 120 // size
        best = found(texts, blocks, size, Belady(texts, size))
        others = [found(texts, blocks, size, one) for one in (None, LeastFrequent(), Adaptive(blocks))]
        assert 0 < max(others) < best


def test_a_heap_holds_few_outdated_places() -> None:
    policy = LeastFrequent()
    for key in range(7):
        policy.named(key)
        policy.freed(key)
    for _ in range(policies._MOST_OUTDATED + 20):
        policy.held(3)
        policy.freed(3)
        assert len(policy._heap) <= 2 * 7 + policies._MOST_OUTDATED
    assert [policy.victim() for _ in range(7)] == [0, 1, 2, 4, 5, 6, 3]


class Watched(PolicyBlocks):
    """Writes down what it takes."""

    def __init__(self, blocks: int, policy: Policy) -> None:
        super().__init__(blocks, policy)
        self.taken = deque[int]()

    def take(self, count: int) -> list[int]:
        taken = super().take(count)
        self.taken += taken
        return taken


@pytest.mark.parametrize("policy", [LeastFrequent, Adaptive])
@pytest.mark.parametrize(("blocks", "size"), [(12, 4), (30, 1), (9, 3)])
def test_random_operations_with_batches_and_twins(policy: type[Policy], blocks: int, size: int) -> None:
    """No block of a live sequence is taken, and accounts add up, whatever the policy chooses."""
    for seed in range(2):
        one = Adaptive(blocks) if policy is Adaptive else LeastFrequent()
        pool = Watched(blocks, one)
        both = Both(HashedBlocks(blocks, size, pool), SlowPolicy(blocks, size, pool.taken))
        for operation in drawn(seed):
            both.do(*operation)
            assert not pool.taken
            if isinstance(one, Adaptive):
                once, again = map(len, one._ghosts)
                assert one._sizes == [list(one._again.values()).count(False), sum(one._again.values())]
                assert one._sizes[0] + once <= blocks
                assert sum(one._sizes) + once + again <= 2 * blocks
        assert both.manager.evictions > 5


def cached(manager: HashedBlocks, *tokens: int) -> int:
    """How many of these tokens an allocation would find."""
    return manager.cached(text((*tokens, 99, 99)))


def run(manager: HashedBlocks, *tokens: int) -> None:
    """A request with this prompt and no answer."""
    assert manager.allocate(1, text(tokens, 0), len(tokens)) is not None
    assert manager.extend(1, len(tokens))
    manager.free(1)


def test_the_least_frequently_used_block_leaves_and_the_oldest_of_equal_ones() -> None:
    manager = HashedBlocks(4, 1, PolicyBlocks(4, LeastFrequent()))
    run(manager, 1, 2)
    run(manager, 1, 3)  # finds 1
    run(manager, 4)
    run(manager, 5)  # 2, 3 and 4 were used once; 2 was free first
    assert [cached(manager, 1, 2), cached(manager, 1, 3), cached(manager, 4), cached(manager, 5)] == [1, 2, 1, 1]
    for token in (6, 7, 8):  # the last one takes 5, although 1 was used before it
        run(manager, token)
    assert [cached(manager, 1), cached(manager, 5), cached(manager, 6)] == [1, 0, 1]
    # 8 is computed again, so its uses are counted anew; it takes 6, then 5 takes 7, and 6 takes 8, free before 9.
    for token in (8, 9, 5, 6):
        run(manager, token)
    assert [cached(manager, 8), cached(manager, 9)] == [0, 1]


class SlowAdaptive:
    """ARC in lists, the least recently used first."""

    def __init__(self, blocks: int) -> None:
        self.blocks, self.target = blocks, 0.0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def use(self, key: int) -> int | None:
        """Use a key; the one that leaves for it."""
        gone = None
        if key not in self.t1 + self.t2 and len(self.t1 + self.t2) == self.blocks:
            taken, ghosts = (self.t1, self.b1) if len(self.t1) > self.target else (self.t2, self.b2)
            gone = taken.pop(0)
            ghosts.append(gone)
            self.forget()
        if key in self.b1:
            step = 1 if len(self.b1) >= len(self.b2) else len(self.b2) / len(self.b1)
            self.target = min(self.blocks, self.target + step)
        if key in self.b2:
            step = 1 if len(self.b2) >= len(self.b1) else len(self.b1) / len(self.b2)
            self.target = max(0, self.target - step)
        again = any(key in known for known in (self.t1, self.t2, self.b1, self.b2))
        for known in (self.t1, self.t2, self.b1, self.b2):
            if key in known:
                known.remove(key)
        (self.t2 if again else self.t1).append(key)
        self.forget()
        return gone

    def forget(self) -> None:
        self.b1 = self.b1[max(0, len(self.t1 + self.b1) - self.blocks) :]
        self.b2 = self.b2[max(0, len(self.t1 + self.t2 + self.b1 + self.b2) - 2 * self.blocks) :]


def test_arc_does_what_lists_do() -> None:
    chance = random.Random(0)
    fast, slow, there = Adaptive(10), SlowAdaptive(10), set[int]()
    targets = set()
    for number in range(3000):
        key = number if number // 100 % 5 == 0 else min(chance.randrange(30), chance.randrange(30))
        gone = slow.use(key)
        assert gone == (fast.victim() if key not in there and len(there) == 10 else None)
        there -= {gone}
        if key in there:
            fast.held(key)
        if key in there and chance.random() < 0.5:
            fast.found([key])
        else:
            fast.named(key)
        fast.freed(key)
        there.add(key)
        assert fast.target == slow.target
        targets.add(slow.target)
    assert {0, 10} <= targets
    assert any(target % 1 for target in targets)


def test_what_finished_sequences_leave_is_found_and_evicted_least_recently_used_first() -> None:
    manager = PrefixManager(6, 2, retain=True)
    assert run_segments(manager, 1, segments((1, 4), (9, 1))) == 0
    assert run_segments(manager, 2, segments((2, 4))) == 0
    assert manager.accounts() == Accounts(0, 0, 0, 0, 8, 4, 0)
    assert run_segments(manager, 3, segments((1, 4), (8, 1))) == 4  # used again: now the second one is older
    assert run_segments(manager, 4, segments((4, 6))) == 0
    assert (manager.cached(segments((1, 5))), manager.cached(segments((2, 5)))) == (4, 0)
    assert manager.evictions == 2


def test_leaves_are_evicted_before_what_they_hang_on() -> None:
    manager = PrefixManager(4, 2, retain=True)
    run_segments(manager, 1, segments((1, 2), (2, 2)))
    run_segments(manager, 2, segments((1, 2), (3, 2)))
    assert run_segments(manager, 3, segments((4, 4))) == 0  # takes the free chunk and the oldest leaf
    assert [manager.cached(segments((1, 2), (last, 9))) for last in (2, 3)] == [2, 4]


def test_a_join_never_evicts_what_it_finds_and_changes_nothing_if_it_is_refused() -> None:
    manager = PrefixManager(4, 2, retain=True)
    assert manager.allocate(1, segments((1, 5)), 5) == 0
    assert manager.extend(1, 4)
    manager.free(1)  # only what was computed stays
    assert manager.allocate(2, segments((2, 4)), 4) == 0
    before = manager.accounts()
    assert manager.allocate(3, segments((1, 4), (3, 2)), 6) is None
    assert manager.accounts() == before
    assert manager.cached(segments((1, 9))) == 4
    manager.free(2)
    assert manager.allocate(3, segments((1, 4), (3, 2)), 6) == 4


def test_misuse() -> None:
    with pytest.raises(ValueError, match="the pool has 3 blocks, not 4"):
        HashedBlocks(4, 1, PolicyBlocks(3, LeastFrequent()))
    manager = PrefixManager(2, 2)
    with pytest.raises(NeverFits, match="5 tokens need 3 chunks"):
        manager.allocate(1, segments((1, 5)), 5)
    manager.allocate(1, segments((1, 2)), 2)
    with pytest.raises(ValueError, match="lives already"):
        manager.allocate(1, segments((1, 2)), 2)
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

    def empty(self, chunks: Sequence[int]) -> None:
        self.tokens.update((chunk, []) for chunk in chunks)

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
            new = manager.table(number)[manager.computed_tokens(number) // size :]
            contents.empty([chunk for chunk in new if not any(chunk in manager.table(other) for other in live)])
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
                    contents.empty(manager.table(name)[len(before[name]) :])
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
                contents.empty(manager.table(name)[len(before) :])
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
    run_segments(manager, 1, segments((1, 4)))
    assert manager.allocate(2, segments((2, 2)), 2) == 0
    before = manager.accounts()
    assert manager.allocate(3, segments((3, 8)), 8, spare=2) is None
    assert (manager.accounts(), manager.cached(segments((1, 9))), manager.evictions) == (before, 4, 0)
    # Three chunks were free; the two evictable ones are to spare.
    assert manager.allocate(3, segments((3, 6)), 6, spare=2) == 0
    assert manager.evictions == 0
