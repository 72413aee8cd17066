"""Requests with several answers: worked out by hand, and in tight memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from chunkbench.attention.manager import AccountedManager
from chunkbench.server.scheduling import Rules
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.groups import AnswerGroups
from chunkbench.workloads.replay.managers import Contiguous, HashedBlocks, Paged, PrefixManager
from chunkbench.workloads.replay.managers.policies import Adaptive
from chunkbench.workloads.replay.managers.policy_blocks import PolicyBlocks
from chunkbench.workloads.replay.simulate import Replay, replay
from chunkbench.workloads.replay.step_time import StepShape
from tests.workloads.replay.requests import request

MANAGERS: dict[str, Callable[[int], AccountedManager]] = {
    # Each has so many blocks of 4 tokens.
    "contiguous": lambda blocks: Contiguous(4 * blocks, "exact", 64),
    "paged": lambda blocks: Paged(blocks, 4),
    "hashed": lambda blocks: HashedBlocks(blocks, 4),
    "arc": lambda blocks: HashedBlocks(blocks, 4, PolicyBlocks(blocks, Adaptive(blocks))),
    "prefix": lambda blocks: PrefixManager(blocks, 4),
    "radix": lambda blocks: PrefixManager(blocks, 4, retain=True),
}
everywhere = pytest.mark.parametrize("name", MANAGERS)
sharing = pytest.mark.parametrize("name", [name for name in MANAGERS if name != "contiguous"])


class Seconds:
    """Every step takes 1 s, and is kept."""

    words = "1 s"

    def __init__(self) -> None:
        self.shapes: list[StepShape] = []

    def seconds(self, shape: StepShape) -> float:
        self.shapes.append(shape)
        return 1.0


class Groups(AnswerGroups):
    """Every group that decodes has all its answers, before and after beams were chosen."""

    def append(self, sequences: Sequence[int]) -> bool:
        done = self._all(sequences) and super().append(sequences)
        return done and self._all(sequences)

    def _all(self, sequences: Sequence[int]) -> bool:
        assert {len(self._live[sequence].sequences) for sequence in sequences} == {self._width}
        return True


def saved(done: Replay) -> float:
    """Share of all tokens that sharing saves."""
    accounts = [moment.accounts for moment in done.moments]
    return sum(one.saved for one in accounts) / sum(one.covered for one in accounts)


@everywhere
def test_two_samples_by_hand(name: str) -> None:
    """A prompt of 8 tokens and answers of 4. The last tokens are never stored."""
    groups, steps = AnswerGroups(MANAGERS[name](20), 2, beam=False, seed=0), Seconds()
    done = replay([request(0, (1, 8), answer=4, number=0)], groups, Rules(), steps, 2)
    covered = [16, 18, 20, 22]
    used = covered if name == "contiguous" else [8, 10, 12, 14]
    assert [moment.accounts.covered for moment in done.moments] == covered
    assert [moment.accounts.used for moment in done.moments] == used
    assert [(one.decoding, one.sampled, one.prompt_tokens) for one in steps.shapes] == [(0, 1, 8), *[(2, 2, 0)] * 3]
    assert groups.prompt_share == pytest.approx(3 * 8 / sum(used[1:]))
    assert (done.peak_batch, done.requests[0].last, groups.slots_held) == (1, 4.0, 0)


@everywhere
def test_prompts_in_memory_count_once_where_requests_share_them(name: str) -> None:
    """In steps 2 and 3 both requests decode, of which the first has ended before step 4."""
    made = [request(0, (1, 8), (n, 3), answer=n, number=n) for n in (3, 4)]
    groups, steps = AnswerGroups(MANAGERS[name](40), 2, beam=False, seed=0), Seconds()
    replay(made, groups, Rules(), steps, 2)
    both = 22 if name in ("contiguous", "paged") else 14
    used = [one.reads.private + one.reads.shared for one in steps.shapes[1:]]
    assert groups.prompt_share == pytest.approx((2 * both + 11) / sum(used))
    assert (groups._prompts, groups._keys) == (0, {})


def test_all_answers_are_computed_again_after_a_preemption() -> None:
    """Of two requests the second is preempted with 5 tokens of each answer, because 8 blocks hold only one to its
    end. When the first has ended, its prompt of 4 tokens and 2 * 5 of its answers are computed at once."""
    made = [request(0, (n, 4), answer=9, number=n) for n in range(2)]
    steps = Seconds()
    done = replay(made, AnswerGroups(Paged(8, 4, 0.0), 2, beam=False, seed=0), Rules(), steps, 2)
    assert [one.preempted for one in done.requests] == [0, 1]
    first, again = [one for one in steps.shapes if one.prompt_tokens]
    assert (first.prompt_tokens, first.prompt_reads, first.sampled) == (8, 20, 2)
    reads = 1 + 2 + 3 + 4 + 2 * (5 + 6 + 7 + 8 + 9)
    assert (again.prompt_tokens, again.prompt_reads, again.sampled, again.decoding) == (14, reads, 2, 0)
    assert done.computed_tokens == 22


def tight(name: str, beam: bool) -> tuple[Replay, AnswerGroups]:
    """Requests that want more memory than there is; many prompts begin alike."""
    chance = random.Random(3)
    made = [
        request(n, (n % 3, 8), (10 + n, chance.randrange(1, 14)), answer=chance.randrange(1, 25), number=n)
        for n in range(40)
    ]
    groups = Groups(MANAGERS[name](128 if name == "contiguous" else 50), 3, beam, seed=5)
    return replay(made, groups, Rules(max_batch=10, prompt_budget=30), Seconds(), 3), groups


@pytest.mark.parametrize("beam", [False, True], ids=["samples", "beams"])
@everywhere
def test_tight_memory(name: str, beam: bool) -> None:
    done, groups = tight(name, beam)
    assert all(one.last is not None and one.length == one.text.total for one in done.requests)
    assert (groups.slots_held, len(groups._live), len(groups._manager._live)) == (0, 0, 0)
    assert all(moment.accounts.capacity == groups.capacity for moment in done.moments)
    assert done.peak_slots <= groups.capacity
    if name == "contiguous":  # pieces are reserved for all answers
        assert done.preemptions == 0
    elif not beam:  # beams share so much that some managers have room
        assert done.preemptions > 0
    if not done.preemptions:
        assert done.computed_tokens == sum(one.text.prompt - (one.cached_tokens or 0) for one in done.requests)
    again, same = tight(name, beam)
    assert (again.moments, again.end, same.prompt_share) == (done.moments, done.end, groups.prompt_share)


@sharing
def test_beams_share_more_than_samples_and_another_seed_draws_others(name: str) -> None:
    made = [request(0, (n, 8), answer=40, number=n) for n in range(3)]
    shares = []
    for beam, seed in ((True, 1), (True, 2), (False, 1), (False, 2)):
        groups = AnswerGroups(MANAGERS[name](300), 4, beam, seed)
        shares.append(saved(replay(made, groups, Rules(), Seconds(), 4)))
        assert groups.slots_held == 0
    assert min(shares[:2]) > shares[2] == shares[3] > 0
    assert shares[0] != shares[1]


@everywhere
def test_after_a_preemption_answers_share_the_full_blocks_of_the_prompt_alone(name: str) -> None:
    """Also where beams had a common part."""
    manager = MANAGERS[name](40)
    groups, text = AnswerGroups(manager, 3, beam=True, seed=0), request(0, (1, 10), answer=20, number=0).text
    for known in (10, 17):
        assert groups.allocate(0, text, known) is not None
        assert groups.extend(0, 6)
        assert groups.extend(0, known)
        if known == 10:
            assert all(groups.append([0]) for _ in range(7))
            groups.free(0)
    tables = [list(manager.table(one)) for one in groups._live[0].sequences]
    common = 0 if name == "contiguous" else 2  # blocks of 4
    assert len(tables) == 3
    assert len({tuple(table[:common]) for table in tables}) == 1
    own = [block for table in tables for block in table[common:]]
    assert len(set(own)) == len(own)
    assert groups.accounts().used == 4 * common + 3 * (17 - 4 * common)


@sharing
def test_a_prompt_whose_answers_have_no_room_is_not_computed(name: str) -> None:
    manager = MANAGERS[name](8)
    groups = AnswerGroups(manager, 3, beam=False, seed=0)
    other, text = (request(0, (n, 8), answer=4, number=n).text for n in (1, 2))
    assert groups.allocate(1, other, 8) == 0
    assert groups.extend(1, 8)
    assert groups.append([1])  # now it has 5 blocks
    assert groups.allocate(2, text, 11) == 0  # it was preempted before, and needs 5
    assert not groups.extend(2, 11)
    assert groups.computed_tokens(2) == 0
    groups.free(2)
    assert groups.cached(text) == 0
    assert groups.slots_held == 20


@everywhere
def test_answers_that_fit_alone_and_never_together_are_refused(name: str) -> None:
    """10 blocks hold 3 answers of 8 tokens behind 8 tokens of a prompt, and 2 in pieces of their own."""
    made: list[ReplayRequest] = [request(n, (n, 8), answer=8, number=n) for n in range(2)]
    most = 2 if name == "contiguous" else 4
    for width, fit in ((most, True), (most + 1, False)):
        groups = AnswerGroups(MANAGERS[name](10), width, beam=False, seed=0)
        done = replay(made, groups, Rules(), Seconds(), width)
        assert [one.last is not None for one in done.requests] == [fit, fit]
        assert all(bool(one.refused) != fit for one in done.requests)
