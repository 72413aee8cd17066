"""Examples, and what the random operations of `test_against_reference` do not reach."""

import pytest

from chunkbench.attention.errors import EmptySequence, UnknownSequence
from chunkbench.attention.manager import Accounts, NeverFits, Reads
from chunkbench.attention.text import TokenText
from chunkbench.workloads.replay.managers.buddy import Buddy
from chunkbench.workloads.replay.managers.contiguous import Contiguous, Reserve


def text(prompt: int, answer: int) -> TokenText:
    return TokenText(range(prompt + answer), prompt, prompt + answer)


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


def test_a_capacity_that_is_no_power_of_two_is_several_pieces() -> None:
    memory = Buddy(13)
    assert memory.largest == 8
    assert [memory.take(1), memory.take(4), memory.take(8), memory.take(1)] == [12, 8, 0, None]
    for begin in (0, 8, 12):
        memory.give_back(begin)
    assert memory.take(9) is None
    assert memory.free == 13


def test_pieces_of_one_size_are_taken_from_the_lowest_address_on() -> None:
    memory = Buddy(32)
    assert [memory.take(4) for _ in range(4)] == [0, 4, 8, 12]
    memory.give_back(12)
    memory.give_back(4)
    assert [memory.take(3), memory.take(3)] == [4, 12]


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
    assert manager.computed_tokens(1) == 0
    assert manager.extend(1, 5)
    assert manager.accounts() == expected
    assert manager.append([1])
    assert manager.accounts() == Accounts(6, 3, 11, 12, 0, 32, 6)
    assert manager.reads() == Reads(6, 0, 0)
    manager.free(1)
    assert manager.accounts() == Accounts(0, 0, 0, 0, 0, 64, 0)
    assert manager.allocate(1, text(5, 4), 6) == 0
    assert manager.accounts() == Accounts(6, 3, 11, 12, 0, 32, 6)


def test_a_reservation_never_grows() -> None:
    manager = Contiguous(64, "pow2", 64)
    assert manager.allocate(1, text(1, 3), 1) == 0  # 1 + 4
    assert manager.allocate(2, text(1, 9), 1) == 0
    assert [manager.append([1, 2]) for _ in range(5)] == [True] * 4 + [False]
    # The fifth token was not expected, but its slot is reserved; the other sequence got none for the append refused.
    assert manager.accounts() == Accounts(10, 5, 7, 3 + 15, 0, 64 - 8 - 32, 10)


def test_what_can_never_fit() -> None:
    manager = Contiguous(24, "exact", 20)
    for tokens in (17, 21):  # the largest piece has 16
        with pytest.raises(NeverFits, match=f"{tokens} tokens"):
            manager.allocate(1, text(tokens, 0), tokens)
    assert manager.allocate(1, text(16, 0), 16) == 0
    with pytest.raises(NeverFits):
        manager.fork(1, 2, text(16, 1))
    assert manager.accounts() == Accounts(16, 0, 0, 0, 0, 8, 16)


def test_misuse() -> None:
    with pytest.raises(ValueError, match="at least 1 slot"):
        Contiguous(0, "max", 1)
    with pytest.raises(ValueError, match="at least 1 token"):
        Contiguous(1, "max", 0)
    with pytest.raises(ValueError, match='"all"'):
        Contiguous(1, "all", 1)  # type: ignore[arg-type]
    manager = Contiguous(8, "exact", 8)
    with pytest.raises(EmptySequence):
        manager.allocate(1, text(1, 1), 0)
    with pytest.raises(UnknownSequence, match="no live sequence has the id 7"):
        manager.table(7)
