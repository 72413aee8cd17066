import pytest

from chunkbench.kvcache.errors import EmptySequence, UnknownSequence
from chunkbench.kvcache.managers.hashed import HashedBlocks
from chunkbench.kvcache.managers.manager import Accounts, NeverFits, Reads
from chunkbench.kvcache.text import SegmentText, TokenText


def text(*parts: tuple[int, int], prompt: int | None = None) -> SegmentText:
    """A text of segments (id, tokens), all prompt unless told."""
    return SegmentText(parts, sum(tokens for _, tokens in parts) if prompt is None else prompt)


def run(manager: HashedBlocks, sequence: int, one: SegmentText) -> int | None:
    """Join, compute the prompt, append the answer, leave. Returns the tokens that were found."""
    cached = manager.join(sequence, one, one.prompt)
    assert manager.reach(sequence, one.prompt)
    for _ in range(one.total - one.prompt):
        assert manager.append([sequence])
    manager.leave(sequence)
    return cached


def test_full_blocks_are_found_but_never_the_last_token() -> None:
    manager = HashedBlocks(10, 4)
    assert run(manager, 1, text((1, 10))) == 0
    assert manager.accounts() == Accounts(used=0, reserved=0, lost_inside=0, lost_between=0, idle=8, free=32, covered=0)
    assert manager.cached(text((1, 9))) == 8
    assert manager.cached(text((1, 8))) == 4  # the second block is computed again
    assert manager.cached(text((1, 4))) == 0
    assert manager.cached(text((1, 4), (2, 9))) == 4
    assert manager.cached(text((2, 9))) == 0
    assert manager.join(2, text((1, 9)), 9) == 8
    assert manager.held(2) == 8
    assert manager.accounts() == Accounts(8, 0, 0, 0, 0, 32, 8)
    assert manager.reach(2, 9)
    assert manager.held(2) == 9
    assert manager.accounts() == Accounts(9, 0, 3, 0, 0, 28, 9)


def test_a_block_is_found_in_the_step_that_fills_it() -> None:
    manager = HashedBlocks(10, 4)
    assert manager.join(1, text((1, 9)), 9) == 0
    assert manager.join(2, text((1, 9)), 9) == 0
    assert manager.reach(1, 6)
    assert manager.join(3, text((1, 9)), 9) == 4
    assert manager.reads() == Reads(private=2, shared=4, shared_covered=8)
    assert manager.reach(1, 9)  # fills the second block, which was partial
    assert manager.held(3) == 4
    assert manager.cached(text((1, 9))) == 8
    # The second sequence found nothing when it joined, so it has blocks of its own.
    assert manager.reach(2, 9)
    assert not set(manager.table(1)) & set(manager.table(2))
    assert manager.accounts() == Accounts(9 + 9, 0, 3 + 3, 0, 0, 40 - 24, 9 + 9 + 4)


def test_an_answer_has_keys_too() -> None:
    manager = HashedBlocks(10, 4)
    one = text((1, 5), (2, 3), (3, 1), prompt=5)
    assert manager.join(1, one, 5) == 0
    assert manager.reach(1, 5)
    assert manager.accounts() == Accounts(5, 3, 0, 0, 0, 32, 5)
    follow_up = text((1, 5), (2, 3), (4, 2))
    for found in (4, 4, 8):
        assert manager.append([1])
        assert manager.cached(follow_up) == found
    assert manager.append([1])
    assert len(manager.table(1)) == 3
    manager.leave(1)
    assert manager.join(1, one, 9) == 8  # its own blocks, the answer included


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


def test_a_free_block_that_a_sequence_uses_again_is_not_taken() -> None:
    manager = HashedBlocks(3, 2)
    run(manager, 1, text((1, 4)))
    assert manager.join(2, text((1, 3)), 3) == 2
    assert manager.accounts() == Accounts(2, 0, 0, 0, 2, 2, 2)
    assert manager.join(3, text((3, 4)), 4) == 0
    assert manager.reach(3, 4)
    assert manager.accounts() == Accounts(6, 0, 0, 0, 0, 0, 6)
    assert not manager.reach(2, 3)
    assert manager.held(2) == 2
    manager.leave(3)
    assert manager.reach(2, 3)


def test_several_blocks_with_one_key() -> None:
    manager = HashedBlocks(4, 2)
    for sequence in (1, 2):
        assert manager.join(sequence, text((1, 3)), 3) == 0
    for sequence in (1, 2):
        assert manager.reach(sequence, 3)
    first, second = manager.table(1)[0], manager.table(2)[0]
    manager.leave(1)
    manager.leave(2)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 4, 4, 0)
    assert manager.join(3, text((1, 3)), 3) == 2
    assert list(manager.table(3)) == [first]
    manager.leave(3)
    # Free are now, in this order: the partial blocks of the second and the first sequence, `second`, `first`.
    assert manager.join(4, text((4, 5)), 5) == 0
    assert manager.reach(4, 5)
    assert second in manager.table(4)
    assert manager.cached(text((1, 3))) == 2
    manager.leave(4)
    # Free: the partial block of the fourth sequence, `first`, the two others of the fourth.
    assert run(manager, 5, text((5, 2))) == 0
    assert manager.cached(text((1, 3))) == 2
    assert run(manager, 6, text((6, 4))) == 0
    assert manager.cached(text((1, 3))) == 0


def test_when_the_first_block_of_a_key_is_taken_the_next_is_found() -> None:
    manager = HashedBlocks(2, 2)
    for sequence in (1, 2):
        assert manager.join(sequence, text((1, 2)), 2) == 0
    for sequence in (1, 2):
        assert manager.reach(sequence, 2)
    first, second = manager.table(1)[0], manager.table(2)[0]
    manager.leave(1)
    assert manager.join(3, text((3, 2)), 2) == 0
    assert manager.reach(3, 2)
    assert manager.table(3) == [first]
    assert manager.cached(text((1, 3))) == 2
    manager.leave(3)
    assert manager.join(4, text((1, 3)), 3) == 2
    assert manager.table(4) == [second]
    assert manager.reads() == Reads(0, 2, 4)


def test_a_block_that_was_not_the_first_of_its_key_is_taken() -> None:
    manager = HashedBlocks(3, 2)
    for sequence in (1, 2, 3):
        assert manager.join(sequence, text((1, 2)), 2) == 0
    for sequence in (1, 2, 3):
        assert manager.reach(sequence, 2)
    second = list(manager.table(2))
    manager.leave(3)
    assert manager.join(4, text((4, 2)), 2) == 0
    assert manager.reach(4, 2)  # takes the third block
    manager.leave(1)
    assert manager.join(5, text((5, 2)), 2) == 0
    assert manager.reach(5, 2)  # takes the first block
    assert manager.evictions == 2
    manager.leave(4)
    assert manager.join(6, text((1, 3)), 3) == 2
    assert manager.table(6) == second


def test_a_join_needs_a_free_block_beside_those_that_it_finds() -> None:
    manager = HashedBlocks(2, 2)
    run(manager, 1, text((1, 4)))
    before = manager.accounts()
    assert manager.join(2, text((1, 4)), 4) == 2
    manager.leave(2)
    assert manager.join(3, text((3, 2)), 2) == 0
    assert manager.reach(3, 2)
    assert manager.cached(text((1, 4))) == 2
    assert manager.join(4, text((1, 4)), 4) is None
    assert manager.cached(text((1, 4))) == 2
    manager.leave(3)
    assert manager.accounts() == before


def test_a_text_that_the_memory_can_never_hold() -> None:
    manager = HashedBlocks(2, 2)
    never = text((1, 4), (2, 1), prompt=4)
    with pytest.raises(NeverFits, match="5 tokens"):
        manager.join(1, never, 4)
    assert manager.join(1, text((1, 4)), 4) == 0
    assert manager.reach(1, 4)
    with pytest.raises(NeverFits):
        manager.fork(1, 2, never)
    # A token that the text did not announce finds no room: no error.
    assert not manager.append([1])


def test_a_twin_shares_full_blocks_and_copies_a_partial_one() -> None:
    manager = HashedBlocks(5, 4)
    one, other = text((1, 6), (2, 9), prompt=6), text((1, 6), (3, 2), prompt=6)
    assert manager.join(1, one, 6) == 0
    assert manager.reach(1, 6)
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
        manager.leave(sequence)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 12, 8, 0)
    assert manager.reads() == Reads(0, 0, 0)


def test_an_append_for_some_sequences_is_refused_for_all() -> None:
    manager = HashedBlocks(3, 2)
    for sequence in (1, 2):
        assert manager.join(sequence, text((sequence, 6), prompt=2), 2) == 0
        assert manager.reach(sequence, 2)
    before = manager.accounts()
    assert not manager.append([1, 2])
    assert manager.accounts() == before
    assert manager.append([2])


def test_tokens_that_the_text_does_not_know_have_no_key() -> None:
    manager = HashedBlocks(4, 2)
    assert manager.join(1, TokenText([5, 6, 7], prompt=3, total=8), 3) == 0
    assert manager.reach(1, 3)
    assert manager.append([1])
    manager.leave(1)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 2, 6, 0)
    assert manager.cached(TokenText([5, 6, 7, 8, 9], prompt=5, total=8)) == 2


def test_a_memory_without_limit_costs_what_is_used_of_it() -> None:
    manager = HashedBlocks(1 << 60, 16)
    assert run(manager, 1, text((1, 100))) == 0
    assert manager.cached(text((1, 100))) == 96
    assert manager.accounts().capacity == manager.capacity == 1 << 64


def test_misuse() -> None:
    for arguments in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match="are no memory"):
            HashedBlocks(*arguments)
    manager = HashedBlocks(4, 4)
    with pytest.raises(EmptySequence):
        manager.join(1, text((1, 1)), 0)
    with pytest.raises(UnknownSequence, match="no live sequence has the id 7"):
        manager.table(7)
