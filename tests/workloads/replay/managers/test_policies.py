"""Which blocks policies take: against exhaustive search, against each other, and by example."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import cache

import pytest

from chunkbench.attention.text import Text, TokenText
from chunkbench.server.scheduling import Rules
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.managers import policies
from chunkbench.workloads.replay.managers.hashed import HashedBlocks
from chunkbench.workloads.replay.managers.policies import Adaptive, Belady, LeastFrequent
from chunkbench.workloads.replay.managers.policy_blocks import Policy, PolicyBlocks
from chunkbench.workloads.replay.simulate import replay
from chunkbench.workloads.replay.step_time import Constant
from tests.workloads.replay.managers.reference import SlowPolicy
from tests.workloads.replay.managers.test_against_reference import Both, drawn

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


def test_no_policy_finds_more_than_belady(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, size in enumerate((1, 4, 4, 16)):
        texts = conversations(random.Random(seed), 200, 50)
        blocks = 120 // size
        best = found(texts, blocks, size, Belady(texts, size))
        others = [found(texts, blocks, size, one) for one in (None, LeastFrequent(), Adaptive(blocks))]
        assert 0 < max(others) < best
        with monkeypatch.context() as patched:
            patched.setattr(policies, "_MOST_OUTDATED", 0)
            assert found(texts, blocks, size, Belady(texts, size)) == best


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
    run(manager, 6)
    run(manager, 7)
    run(manager, 8)  # takes 5, although 1 was used before it
    assert [cached(manager, 1), cached(manager, 5), cached(manager, 6)] == [1, 0, 1]
    run(manager, 8)  # computed again, so its uses are counted anew; takes 6
    run(manager, 9)
    run(manager, 5)  # takes 7
    run(manager, 6)  # takes 8, which was free before 9
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


def test_a_scan_does_not_empty_arc() -> None:
    arc = Adaptive(8)
    managers = [HashedBlocks(8, 1), HashedBlocks(8, 1, PolicyBlocks(8, arc))]
    for manager in managers:
        for _ in range(2):
            run(manager, 1, 2, 3, 4)
        for number in range(10, 40):
            run(manager, number)
    assert [cached(manager, 1, 2, 3) for manager in managers] == [0, 3]
    assert arc.target == 0
    run(managers[1], 38)  # still there, and computed again, so it is one that was used again
    assert arc.target == 0
    run(managers[1], 33)  # a ghost: it left too early
    assert arc.target == 1
    assert cached(managers[1], 33) == 1


def test_a_pool_of_another_size() -> None:
    with pytest.raises(ValueError, match="the pool has 3 blocks, not 4"):
        HashedBlocks(4, 1, PolicyBlocks(3, LeastFrequent()))
