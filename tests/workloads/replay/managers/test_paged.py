"""Managers whose memory is contiguous, paged, or found by hashes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from chunkbench.attention.errors import EmptySequence, UnknownSequence, WrongTokens
from chunkbench.attention.manager import Accounts, NeverFits, Reads
from chunkbench.attention.text import SegmentText, TokenText
from chunkbench.workloads.replay.managers import keyed_blocks
from chunkbench.workloads.replay.managers.buddy import Buddy
from chunkbench.workloads.replay.managers.contiguous import Contiguous, Reserve
from chunkbench.workloads.replay.managers.hashed import HashedBlocks
from chunkbench.workloads.replay.managers.paged import Paged


def text(prompt: int, answer: int = 0) -> TokenText:
    return TokenText(range(prompt + answer), prompt, prompt + answer)


def test_blocks_come_with_the_prompt_and_then_one_by_one() -> None:
    manager = Paged(10, 4, watermark=0)
    assert manager.cached(text(6, 5)) == 0
    assert manager.allocate(1, text(6, 5), 6) == 0
    assert manager.computed_tokens(1) == 0
    assert manager.extend(1, 6)
    assert len(manager.table(1)) == 2
    assert manager.accounts() == Accounts(
        used=6, reserved=2, internal_fragmentation=0, external_fragmentation=0, evictable=0, free=32, covered=6
    )
    assert manager.append([1])
    assert manager.append([1])
    assert manager.slots_held == 8
    assert manager.append([1])
    # The third block has the ninth token and will have two more of the eleven.
    assert manager.accounts() == Accounts(9, 2, 1, 0, 0, 28, 9)
    assert manager.reads() == Reads(9, 0, 0)
    manager.free(1)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 0, 40, 0)


def test_a_join_leaves_the_watermark_free_and_appends_use_it() -> None:
    manager = Paged(100, 1)  # 1 block stays
    assert manager.allocate(1, text(98, 1), 98) == 0
    assert manager.allocate(2, text(2), 2) is None
    assert manager.allocate(2, text(1), 1) == 0
    assert manager.append([1])
    assert not manager.append([1])
    for never in (text(100), text(1, 99)):
        with pytest.raises(NeverFits, match="100 tokens need 100 blocks; 99 can be had"):
            manager.allocate(3, never, never.prompt)
        with pytest.raises(NeverFits):
            manager.fork(1, 3, never)


def test_the_first_of_two_twins_that_write_copies_the_partial_block() -> None:
    manager = Paged(5, 4, watermark=0)
    assert manager.allocate(1, text(6, 6), 6) == 0
    assert manager.fork(1, 2, text(6, 1))
    assert list(manager.table(1)) == list(manager.table(2))
    assert manager.accounts() == Accounts(6, 2, 0, 0, 0, 12, 12)  # the text of the first will fill the block
    assert manager.reads() == Reads(0, 6, 12)
    assert manager.append([2, 1])
    assert manager.copies == 1
    assert manager.table(1)[0] == manager.table(2)[0]
    assert manager.table(1)[1] != manager.table(2)[1]
    # 4 shared tokens, 3 of each; in each last block a slot is left, which the first sequence alone will fill.
    assert manager.accounts() == Accounts(10, 1, 1, 0, 0, 8, 14)
    assert manager.reads() == Reads(6, 4, 8)
    manager.free(1)
    assert manager.reads() == Reads(7, 0, 0)
    assert manager.slots_held == 8


def test_what_is_swapped_out_is_unknown_until_it_is_back_and_may_leave() -> None:
    manager = Paged(10, 2, watermark=0.1)
    assert manager.allocate(1, text(5, 5), 5) == 0
    assert manager.fork(1, 2, text(5, 5))
    assert manager.append([1])
    assert manager.swap_out(1) == 6
    # The two blocks that the twin uses stay.
    assert manager.accounts() == Accounts(5, 1, 0, 0, 0, 14, 5)
    calls: list[Callable[[], object]] = [
        lambda: manager.computed_tokens(1),
        lambda: manager.table(1),
        lambda: manager.append([1]),
        lambda: manager.extend(1, 6),
        lambda: manager.fork(1, 3, text(5, 5)),
        lambda: manager.swap_out(1),
    ]
    for call in calls:
        with pytest.raises(UnknownSequence):
            call()
    with pytest.raises(ValueError, match="lives already"):
        manager.allocate(1, text(5), 5)
    with pytest.raises(ValueError, match="lives already"):
        manager.fork(2, 1, text(5, 5))
    assert manager.swap_in(1)
    assert manager.append([1])
    assert manager.swap_out(1) == 7
    manager.free(1)
    with pytest.raises(UnknownSequence):
        manager.swap_in(1)
    manager.free(2)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 0, 20, 0)


MISUSE: list[tuple[Callable[[], object], type[Exception], str]] = [
    *[(partial(Paged, *given), ValueError, "no memory") for given in ((0, 4), (4, 0), (4, 4, 1.0), (4, 4, -0.1))],
    *[(partial(HashedBlocks, *given), ValueError, "no memory") for given in ((0, 4), (4, 0))],
    (partial(Contiguous, 0, "max", 1), ValueError, "at least 1 slot"),
    (partial(Contiguous, 1, "max", 0), ValueError, "at least 1 token"),
    (partial(Contiguous, 1, "all", 1), ValueError, '"all"'),  # type: ignore[arg-type]
    (lambda: Paged(4, 4).allocate(1, text(1), 0), EmptySequence, ""),
    (lambda: HashedBlocks(4, 4).allocate(1, text(1), 0), EmptySequence, ""),
    (lambda: Contiguous(8, "exact", 8).allocate(1, text(1), 0), EmptySequence, ""),
    (lambda: HashedBlocks(4, 4).table(7), UnknownSequence, "no live sequence has the id 7"),
    (lambda: Contiguous(8, "exact", 8).table(7), UnknownSequence, "no live sequence has the id 7"),
]


@pytest.mark.parametrize(("call", "error", "words"), MISUSE)
def test_misuse(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words or None):
        call()


def test_the_allocator_splits_and_merges() -> None:
    memory = Buddy(16)
    assert [memory.take(slots) for slots in (3, 1, 2)] == [0, 4, 6]  # of 16: 4, then 1 of the 4 behind it, then 2
    assert memory.free == 16 - 4 - 1 - 2
    assert [memory.free_below(slots) for slots in (1, 2, 8, 9)] == [0, 1, 1, 9]
    memory.give_back(0)
    assert memory.take(5) == 8  # 0..3 and 5 are free, but they are no piece of 8
    assert memory.take(4) == 0
    memory.give_back(0)
    for begin in (6, 4, 8):
        memory.give_back(begin)
    assert memory.take(16) == 0
    with pytest.raises(KeyError):
        memory.give_back(4)


@pytest.mark.parametrize(
    ("reserve", "prompt", "answer", "tokens"),
    [
        ("max", 5, 3, 100),
        ("exact", 5, 3, 8),
        ("pow2", 5, 3, 5 + 4),
        ("pow2", 5, 4, 5 + 4),
        ("pow2", 5, 5, 5 + 8),
        ("pow2", 5, 0, 5),
        ("pow2", 60, 33, 100),  # not 60 + 64
    ],
)
def test_reservations(reserve: Reserve, prompt: int, answer: int, tokens: int) -> None:
    assert Contiguous(128, reserve, 100).reservation(text(prompt, answer)) == tokens


def test_accounts_of_a_reservation_for_the_longest_sequence() -> None:
    manager = Contiguous(64, "max", 20)
    assert manager.cached(text(5, 4)) == 0
    assert manager.allocate(1, text(5, 4), 5) == 0
    # A piece of 32: 20 are reserved, 9 of them will be filled.
    expected = Accounts(
        used=5, reserved=4, internal_fragmentation=11, external_fragmentation=12, evictable=0, free=32, covered=5
    )
    assert manager.accounts() == expected
    assert manager.capacity == expected.capacity == 64
    assert manager.slots_held == 32
    assert manager.extend(1, 5)
    assert manager.append([1])
    assert manager.accounts() == Accounts(6, 3, 11, 12, 0, 32, 6)
    assert manager.reads() == Reads(6, 0, 0)
    manager.free(1)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 0, 64, 0)


def test_what_can_never_fit() -> None:
    manager = Contiguous(24, "exact", 20)
    for tokens in (17, 21):  # the largest piece has 16
        with pytest.raises(NeverFits, match=f"{tokens} tokens"):
            manager.allocate(1, text(tokens, 0), tokens)
    assert manager.allocate(1, text(16, 0), 16) == 0
    with pytest.raises(NeverFits):
        manager.fork(1, 2, text(16, 1))
    assert manager.accounts() == Accounts(16, 0, 0, 0, 0, 8, 16)


def hashed_text(*parts: tuple[int, int], prompt: int | None = None) -> SegmentText:
    """A text of segments (id, tokens), all prompt unless told."""
    return SegmentText(parts, sum(tokens for _, tokens in parts) if prompt is None else prompt)


def run(manager: HashedBlocks, sequence: int, one: SegmentText) -> int | None:
    """Join, compute the prompt, append the answer, leave. Returns the tokens that were found."""
    cached = manager.allocate(sequence, one, one.prompt)
    assert manager.extend(sequence, one.prompt)
    for _ in range(one.total - one.prompt):
        assert manager.append([sequence])
    manager.free(sequence)
    return cached


def test_full_blocks_are_found_but_never_the_last_token() -> None:
    manager = HashedBlocks(10, 4)
    assert run(manager, 1, hashed_text((1, 10))) == 0
    assert manager.accounts() == Accounts(
        used=0, reserved=0, internal_fragmentation=0, external_fragmentation=0, evictable=8, free=32, covered=0
    )
    assert manager.cached(hashed_text((1, 9))) == 8
    assert manager.cached(hashed_text((1, 8))) == 4  # the second block is computed again
    assert manager.cached(hashed_text((1, 4))) == 0
    assert manager.cached(hashed_text((1, 4), (2, 9))) == 4
    assert manager.cached(hashed_text((2, 9))) == 0
    assert manager.allocate(2, hashed_text((1, 9)), 9) == 8
    assert manager.computed_tokens(2) == 8
    assert manager.accounts() == Accounts(8, 0, 0, 0, 0, 32, 8)
    assert manager.extend(2, 9)
    assert manager.computed_tokens(2) == 9
    assert manager.accounts() == Accounts(9, 0, 3, 0, 0, 28, 9)


def test_the_least_recently_used_block_is_taken_first_and_the_last_of_a_sequence_before_its_first() -> None:
    manager = HashedBlocks(6, 1)
    run(manager, 1, hashed_text((1, 3)))
    run(manager, 2, hashed_text((2, 3)))
    assert manager.evictions == 0
    run(manager, 3, hashed_text((3, 1)))  # takes the third block of the first sequence
    assert manager.cached(hashed_text((1, 4))) == 2
    assert manager.evictions == 1
    assert run(manager, 4, hashed_text((1, 2))) == 1  # the first block again; takes the second for its last token
    assert manager.evictions == 2
    run(manager, 5, hashed_text((5, 3)))  # takes the second sequence's blocks
    assert manager.cached(hashed_text((2, 4))) == 0
    assert manager.cached(hashed_text((1, 4))) == 2
    assert manager.cached(hashed_text((3, 2))) == 1


def test_a_text_that_the_memory_can_never_hold() -> None:
    manager = HashedBlocks(2, 2)
    never = hashed_text((1, 4), (2, 1), prompt=4)
    with pytest.raises(NeverFits, match="5 tokens"):
        manager.allocate(1, never, 4)
    assert manager.allocate(1, hashed_text((1, 4)), 4) == 0
    assert manager.extend(1, 4)
    with pytest.raises(NeverFits):
        manager.fork(1, 2, never)
    # A token that the text did not announce finds no room: no error.
    assert not manager.append([1])


def test_tokens_that_the_text_does_not_know_have_no_key() -> None:
    manager = HashedBlocks(4, 2)
    assert manager.allocate(1, TokenText([5, 6, 7], prompt=3, total=8), 3) == 0
    assert manager.extend(1, 3)
    assert manager.append([1])
    manager.free(1)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 2, 6, 0)
    assert manager.cached(TokenText([5, 6, 7, 8, 9], prompt=5, total=8)) == 2


def test_a_memory_without_limit_costs_what_is_used_of_it() -> None:
    manager = HashedBlocks(1 << 60, 16)
    assert run(manager, 1, hashed_text((1, 100))) == 0
    assert manager.cached(hashed_text((1, 100))) == 96
    assert manager.accounts().capacity == manager.capacity == 1 << 64


def test_a_key_behind_a_block_without_one() -> None:
    manager = HashedBlocks(8, 2)
    assert manager.allocate(1, TokenText([5, 6, 7], prompt=3, total=6), 3) == 0
    assert manager.extend(1, 3)
    assert manager.append([1])  # the second block is full and has no key
    assert manager.fork(1, 2, TokenText([5, 6, 7, 8, 9, 4], prompt=3, total=6))
    assert manager.append([2])
    assert manager.append([2])  # the third has one
    manager.free(1)
    manager.free(2)
    assert manager.accounts().evictable == 4
    assert manager.cached(TokenText([5, 6, 7, 8, 9, 4, 3], prompt=7, total=8)) == 2
    assert run(manager, 3, hashed_text((1, 16))) == 0
    assert manager.evictions == 2


def test_what_is_used_again_and_again_takes_no_more_memory() -> None:
    manager = HashedBlocks(4100, 1)
    for sequence in range(30):
        assert run(manager, sequence, hashed_text((1, 4000), (2 + sequence, 1))) == (4000 if sequence else 0)
        assert manager._pool._queued <= 2 * manager._pool.evictable + keyed_blocks._MOST_OUTDATED
    assert manager.cached(hashed_text((1, 4000), (31, 9))) == 4001


@pytest.mark.parametrize("segment", [-1, 1 << 38, 1 << 64])
def test_ids_that_a_key_cannot_hold_are_refused(segment: int) -> None:
    with pytest.raises(WrongTokens, match="ids of segments lie between 0 and 274877906943"):
        SegmentText([(segment, 4)], 4)
    assert SegmentText([((1 << 38) - 1, 4)], 4).keys(4) >= 0
