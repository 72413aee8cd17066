"""Examples, and what the random operations of `test_against_reference` do not reach."""

from collections.abc import Callable

import pytest

from chunkbench.attention.errors import EmptySequence, UnknownSequence
from chunkbench.attention.manager import Accounts, NeverFits, Reads
from chunkbench.attention.text import TokenText
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


def test_the_last_writer_of_a_partial_block_needs_no_copy() -> None:
    manager = Paged(4, 4, watermark=0)
    assert manager.allocate(1, text(3, 9), 3) == 0
    for twin in (2, 3, 4):
        assert manager.fork(1, twin, text(3, 9))
    assert manager.accounts() == Accounts(3, 1, 0, 0, 0, 12, 12)
    assert manager.append([1, 2, 3, 4])  # three copies; the last one writes in place
    assert manager.copies == 3
    assert manager.slots_held == 16


def test_copies_that_do_not_fit() -> None:
    manager = Paged(2, 4, watermark=0)
    assert manager.allocate(1, text(3, 5), 3) == 0
    assert manager.fork(1, 2, text(3, 5))
    assert manager.fork(1, 3, text(3, 5))
    assert not manager.append([1, 2])  # two copies, one block is free
    assert manager.accounts() == Accounts(3, 1, 0, 0, 0, 4, 9)
    assert manager.append([2])
    assert manager.copies == 1
    assert not manager.append([1])


def test_swapping_takes_all_of_a_sequence_or_nothing() -> None:
    manager = Paged(10, 2, watermark=0.1)
    assert manager.allocate(1, text(5, 5), 5) == 0
    assert manager.fork(1, 2, text(5, 5))
    assert manager.append([1])
    assert manager.slots_held == 8
    assert manager.swap_out(1) == 6
    # The two blocks that the twin uses stay.
    assert manager.accounts() == Accounts(5, 1, 0, 0, 0, 14, 5)
    calls: list[Callable[[], object]] = [
        lambda: manager.computed_tokens(1),
        lambda: manager.table(1),
        lambda: manager.append([1]),
        lambda: manager.extend(1, 6),
        lambda: manager.fork(1, 3, text(5, 5)),
    ]
    for call in calls:
        with pytest.raises(UnknownSequence):
            call()
    with pytest.raises(ValueError, match="lives already"):
        manager.allocate(1, text(5), 5)
    with pytest.raises(ValueError, match="lives already"):
        manager.fork(2, 1, text(5, 5))
    assert manager.allocate(3, text(8), 8) == 0  # 3 blocks are free, and 1 must stay
    assert not manager.swap_in(1)
    manager.free(3)
    assert manager.swap_in(1)
    assert manager.accounts().saved == 0  # nothing is shared any more
    assert manager.slots_held == 2 * (3 + 3)
    assert manager.append([1])
    assert len(manager.table(1)) == 4


def test_a_sequence_that_is_swapped_out_may_leave() -> None:
    manager = Paged(4, 2, watermark=0)
    assert manager.allocate(1, text(3), 3) == 0
    assert manager.swap_out(1) == 3
    manager.free(1)
    for call in (manager.swap_in, manager.swap_out, manager.free):
        with pytest.raises(UnknownSequence):
            call(1)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 0, 8, 0)


def test_misuse() -> None:
    for arguments in ((0, 4, 0.1), (4, 0, 0.1), (4, 4, 1.0), (4, 4, -0.1)):
        with pytest.raises(ValueError, match="are no memory"):
            Paged(*arguments)
    with pytest.raises(EmptySequence):
        Paged(4, 4).allocate(1, text(1), 0)
