"""A replay: its job, its groups of requests, its virtual clock."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chunkbench.attention.manager import AccountedManager
from chunkbench.attention.text import SegmentText, Text, TokenText
from chunkbench.server.scheduling import Rules
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.groups import AnswerGroups
from chunkbench.workloads.replay.job import ReplayJob, _distinct, compute
from chunkbench.workloads.replay.managers import Contiguous, HashedBlocks, Paged, PrefixManager
from chunkbench.workloads.replay.managers.policies import Adaptive
from chunkbench.workloads.replay.managers.policy_blocks import PolicyBlocks
from chunkbench.workloads.replay.result import ReplayPoint
from chunkbench.workloads.replay.simulate import Replay, Replayed, Stuck, replay
from chunkbench.workloads.replay.step_time import Constant, StepShape, StepTime, WithSwaps, copy_rate
from tests.workloads.made import request


def test_times_of_three_requests() -> None:
    """Steps of 1 s. The second request comes within the first step and starts with the second one; an idle server waits
    for the third one."""
    made = [
        request(due, (number, prompt), answer=answer, number=number)
        for number, (due, prompt, answer) in enumerate([(0, 6, 3), (0.5, 10, 2), (9.25, 2, 1)])
    ]
    done = replay(made, Paged(50, 4, 0.0), Rules(max_batch=2, prompt_budget=8), Constant(1.0))
    # The prompt of the second one takes two steps.
    assert [(one.first, one.last) for one in done.requests] == [(1.0, 3.0), (3.0, 4.0), (10.25, 10.25)]
    assert (done.steps, done.end, done.computed_tokens, done.peak_batch) == (5, 10.25, 18, 2)
    assert done.peak_slots == 20


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
    assert [one.last for one in done.requests] == [None, 1.0]


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
        assert one.request.due < one.first <= one.last - (one.request.answer - 1)  # a token a step at most
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


def job(
    manager: str,
    requests: int = 20,
    longest: int | None = None,
    truncate: int | None = None,
    step_time: StepTime = Constant(0.02),  # noqa: B008, it is frozen
    **axes: Any,
) -> ReplayJob:
    given = {"rate": 600, "device": "cpu", "dtype": "float16", **axes}
    point = ReplayPoint(**ReplayPoint.completed(given) | given)
    return ReplayJob(manager, point, "0", 0, requests, longest, 512, truncate, step_time)


def test_copies_are_timed_once_for_each_size() -> None:
    copy_rate.cache_clear()
    rates = [copy_rate(size) for size in (1 << 16, 1 << 16, 1 << 30)]  # the last is more than all that is copied
    assert min(rates) > 0
    assert rates[0] == rates[1]
    assert copy_rate.cache_info()[:2] == (1, 2)


@pytest.mark.parametrize(("truncate", "cached"), [(None, 19 * 64), (96, 0)])
def test_cut_prompts_are_not_cached(truncate: int | None, cached: int) -> None:
    """The optimum knows the requests as they are after the cut."""
    axes: dict[str, Any] = {"n_p": 128, "n_s": 96, "n_c": 4, "block_size": 32, "batch_size": 1}
    for manager in ("paged_prefix", "belady"):
        replay = compute(job(manager, truncate=truncate, **axes)).replay
        assert replay is not None
        assert (replay.prompt_tokens, replay.refused) == (20 * (truncate or 128), 0)
        assert replay.cached_tokens == (19 * 96 if truncate is None else cached)


def test_requests_are_too_long_only_after_the_cut(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps({**line, "timestamp": 500 * n}) for n in range(6)))
    kinds: list[dict[str, Any]] = [
        {"traffic": str(file), "rate": None},
        {"traffic": "fixed", "n_p": 600, "n_s": 0, "n_c": 4},
    ]
    for axes in kinds:
        replay = compute(job("paged", 6, 100, 96, samples=2, **axes)).replay
        assert replay is not None
        assert (replay.requests, replay.prompt_tokens, replay.refused) == (6, 6 * 96, 0)
        with pytest.raises(ValueError, match=r"all requests have more than 99 tokens"):
            compute(job("paged", 6, 99, 96, **axes))


def slow_distinct(texts: list[Text], block: int) -> int:
    """Names are all tokens up to the end of a block."""
    prompts, answers, tails = set[tuple[int, ...]](), set[tuple[int, ...]](), 0
    for text in texts:
        names = [tuple(text.tokens(0, end).tolist()) for end in range(block, text.total + 1, block)]
        full = text.prompt // block
        prompts.update(names[:full])
        answers.update(names[full:])
        tails += text.prompt % block
    return len(prompts - answers) * block + tails


@pytest.mark.parametrize("kind", ["tokens", "segments"])
def test_distinct_tokens_are_those_of_sets(kind: str) -> None:
    """Texts begin as others did, often with their answers, and many are equal."""
    told = 0
    for seed in range(150):
        chance = random.Random(f"{kind} {seed}")
        said: list[list[tuple[int, int]]] = [[]]
        texts: list[Text] = []
        for number in range(12):
            before = chance.choice(said)
            before = before[: chance.randrange(len(before) + 1)]
            # Ids of tokens may come again behind other tokens; ids of segments stand for one text.
            ids = [chance.randrange(3) if kind == "tokens" else 100 * number + n for n in (1, 2)]
            said.append([*before, *((id, chance.randint(1, 5)) for id in ids)])
            total = sum(tokens for _, tokens in said[-1])
            prompt = chance.randint(1, total - 1)
            tokens = [one for one, tokens in said[-1] for _ in range(tokens)]
            texts.append(TokenText(tokens, prompt, total) if kind == "tokens" else SegmentText(said[-1], prompt))
        block = chance.randint(1, 4)
        entries = [Replayed(n, ReplayRequest(0.0, text)) for n, text in enumerate(texts)]
        found = _distinct(entries, block)
        assert found == slow_distinct(texts, block), seed
        told += found < sum(text.prompt for text in texts)
    assert told > 100
    assert _distinct([], 4) == 0


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
        told = "3 pieces of 16 tokens" if name == "contiguous" else "5 answers of 16 tokens"
        assert all(one.refused.startswith(told) != fit and bool(one.refused) != fit for one in done.requests)
