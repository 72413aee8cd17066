"""Examples, and what the random operations of `test_against_reference` do not reach."""

import pytest

from chunkbench.attention.errors import EmptySequence, UnknownSequence, WrongTokens
from chunkbench.attention.manager import Accounts, NeverFits, Reads
from chunkbench.attention.text import SegmentText, TokenText
from chunkbench.workloads.replay.managers import keyed_blocks
from chunkbench.workloads.replay.managers.hashed import HashedBlocks


def text(*parts: tuple[int, int], prompt: int | None = None) -> SegmentText:
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
    assert run(manager, 1, text((1, 10))) == 0
    assert manager.accounts() == Accounts(
        used=0, reserved=0, internal_fragmentation=0, external_fragmentation=0, evictable=8, free=32, covered=0
    )
    assert manager.cached(text((1, 9))) == 8
    assert manager.cached(text((1, 8))) == 4  # the second block is computed again
    assert manager.cached(text((1, 4))) == 0
    assert manager.cached(text((1, 4), (2, 9))) == 4
    assert manager.cached(text((2, 9))) == 0
    assert manager.allocate(2, text((1, 9)), 9) == 8
    assert manager.computed_tokens(2) == 8
    assert manager.accounts() == Accounts(8, 0, 0, 0, 0, 32, 8)
    assert manager.extend(2, 9)
    assert manager.computed_tokens(2) == 9
    assert manager.accounts() == Accounts(9, 0, 3, 0, 0, 28, 9)


def test_the_least_recently_used_block_is_taken_first_and_the_last_of_a_sequence_before_its_first() -> None:
    manager = HashedBlocks(6, 1)
    run(manager, 1, text((1, 3)))
    run(manager, 2, text((2, 3)))
    assert manager.evictions == 0
    run(manager, 3, text((3, 1)))  # takes the third block of the first sequence
    assert manager.cached(text((1, 4))) == 2
    assert manager.evictions == 1
    assert run(manager, 4, text((1, 2))) == 1  # uses the first block again, and takes the second for its last token
    assert manager.evictions == 2
    run(manager, 5, text((5, 3)))  # takes the second sequence's blocks
    assert manager.cached(text((2, 4))) == 0
    assert manager.cached(text((1, 4))) == 2
    assert manager.cached(text((3, 2))) == 1


def test_a_text_that_the_memory_can_never_hold() -> None:
    manager = HashedBlocks(2, 2)
    never = text((1, 4), (2, 1), prompt=4)
    with pytest.raises(NeverFits, match="5 tokens"):
        manager.allocate(1, never, 4)
    assert manager.allocate(1, text((1, 4)), 4) == 0
    assert manager.extend(1, 4)
    with pytest.raises(NeverFits):
        manager.fork(1, 2, never)
    # A token that the text did not announce finds no room: no error.
    assert not manager.append([1])


def test_a_twin_shares_full_blocks_and_copies_a_partial_one() -> None:
    manager = HashedBlocks(5, 4)
    one, other = text((1, 6), (2, 9), prompt=6), text((1, 6), (3, 2), prompt=6)
    assert manager.allocate(1, one, 6) == 0
    assert manager.extend(1, 6)
    assert manager.fork(1, 2, other)
    assert manager.table(1)[0] == manager.table(2)[0]
    assert manager.table(1)[1] != manager.table(2)[1]
    assert manager.accounts() == Accounts(4 + 2 + 2, 2 + 2, 0, 0, 0, 8, 12)
    assert manager.reads() == Reads(4, 4, 8)
    assert manager.append([1, 2])
    assert manager.append([2, 1])
    # Both second blocks are full and differ, so both are found. A twin of a full block needs none of its own.
    assert manager.cached(text((1, 6), (2, 9))) == 8
    assert manager.cached(text((1, 6), (3, 9))) == 8
    assert manager.fork(1, 3, one)
    assert manager.fork(1, 4, one)
    assert manager.reads() == Reads(4, 8, 4 * 4 + 3 * 4)
    assert manager.append([1, 3])
    assert not manager.fork(1, 5, one)
    for sequence in (1, 2, 3, 4):
        manager.free(sequence)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 12, 8, 0)
    assert manager.reads() == Reads(0, 0, 0)


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
    assert run(manager, 1, text((1, 100))) == 0
    assert manager.cached(text((1, 100))) == 96
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
    assert run(manager, 3, text((1, 16))) == 0
    assert manager.evictions == 2


def test_what_is_used_again_and_again_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_blocks, "_MOST_OUTDATED", 4)
    manager = HashedBlocks(9, 1)
    run(manager, 1, text((1, 3)))
    for sequence in range(2, 30):
        assert run(manager, sequence, text((2, 4), (sequence, 1))) == (4 if sequence > 2 else 0)
        assert manager._pool._queued <= 2 * manager._pool.evictable + 4
    assert manager.cached(text((1, 4))) == 0
    assert manager.cached(text((2, 4), (29, 2))) == 5


def test_misuse() -> None:
    for arguments in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match="are no memory"):
            HashedBlocks(*arguments)
    manager = HashedBlocks(4, 4)
    with pytest.raises(EmptySequence):
        manager.allocate(1, text((1, 1)), 0)
    with pytest.raises(UnknownSequence, match="no live sequence has the id 7"):
        manager.table(7)


@pytest.mark.parametrize("segment", [-1, 1 << 38, 1 << 64])
def test_ids_that_a_key_cannot_hold_are_refused(segment: int) -> None:
    with pytest.raises(WrongTokens, match="ids of segments lie between 0 and 274877906943"):
        SegmentText([(segment, 4)], 4)
    assert SegmentText([((1 << 38) - 1, 4)], 4).keys(4) >= 0
