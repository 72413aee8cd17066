"""What every cache manager does: it decides which token slots of K/V memory a sequence has. Ids only, no tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from chunkbench.attention.errors import EmptySequence, KVCacheError, UnknownSequence
from chunkbench.attention.text import Text

L = TypeVar("L")


class NeverFits(KVCacheError, ValueError):
    """A sequence needs more slots than the whole memory has."""


@dataclass(frozen=True)
class Accounts:
    """Where the token slots of the memory are. The first six numbers add up to the capacity."""

    used: int
    """Slots that hold a token of a live sequence; one that several sequences share counts once."""
    reserved: int
    """Allocated slots that the sequence will fill later."""
    internal_fragmentation: int
    """Allocated slots that no token will ever fill (internal fragmentation)."""
    external_fragmentation: int
    """Slots that no sequence has, and that the waiting sequence cannot get (external fragmentation)."""
    evictable: int
    """Slots that hold tokens of sequences that ended, kept for later ones."""
    free: int
    """All others."""
    covered: int
    """Tokens of all live sequences, each counted by itself; `covered - used` slots are saved by sharing."""

    @property
    def capacity(self) -> int:
        """Token slots of the memory."""
        return (
            self.used
            + self.reserved
            + self.internal_fragmentation
            + self.external_fragmentation
            + self.evictable
            + self.free
        )

    @property
    def saved(self) -> int:
        """Slots that sharing saves."""
        return self.covered - self.used


@dataclass(frozen=True)
class Reads:
    """What one step of attention reads: tokens of live sequences by how many sequences cover them."""

    private: int
    """Tokens that one sequence covers."""
    shared: int
    """Tokens that several sequences cover, each counted once."""
    shared_covered: int
    """The same, counted once for each sequence."""


class LiveSequences(dict[int, L]):
    """What a manager knows of each live sequence, by id."""

    def __missing__(self, sequence: int) -> L:
        raise UnknownSequence(f"no live sequence has the id {sequence}")

    def check_new(self, sequence: int, tokens: int = 1) -> None:
        """Raise ValueError if the id is taken, EmptySequence if the sequence would have no token."""
        if sequence in self:
            raise ValueError(f"sequence {sequence} lives already")
        if tokens < 1:
            raise EmptySequence("a sequence has at least one token")


class Manager(ABC):
    """A K/V cache manager. Sequences have ids that the caller chooses; an id is free again once the sequence left.

    An operation that returns None or False for lack of memory changes nothing. Unknown ids raise `UnknownSequence`.
    A manager that shares nothing between sequences, and gives a prompt all its slots when it is allocated, inherits
    `cached`, `computed_tokens` and `extend`.
    """

    block_tokens: int
    """Tokens of a block (chunk, page); 1 where memory is not divided."""
    capacity: int
    """Token slots of the memory."""
    _live: LiveSequences[Any]

    def __init__(self, capacity: int, block_tokens: int) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self._live = LiveSequences()

    @property
    @abstractmethod
    def slots_held(self) -> int:
        """Slots that live sequences have, whole blocks, shared ones once: what the memory must hold for them now."""

    def cached(self, text: Text) -> int:
        """Leading tokens of the prompt that an allocation would find now. Changes nothing, not even times of last
        use."""
        return 0

    @abstractmethod
    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        """Admit a sequence with the first `known` tokens of a text: prompt, and answer so far after a preemption.

        After it, room for `spare` more blocks must be left for sequences that grow.
        Returns the leading tokens that need not be computed, at most `known - 1`, because the last token's logits are
        needed; None if there is no room now. Raises NeverFits.
        """

    def computed_tokens(self, sequence: int) -> int:
        """Leading tokens whose K and V are in memory, or come there in this step. May grow through other sequences."""
        self._live[sequence]
        return 0

    def extend(self, sequence: int, tokens: int) -> bool:
        """This step computes a prompt up to its first `tokens` tokens: give them slots. False if there is no room."""
        self._live[sequence]
        return True

    @abstractmethod
    def append(self, sequences: Sequence[int]) -> bool:
        """Give each of these sequences a slot for one more token, which this step computes; all or none.

        False if there is no room.
        """

    @abstractmethod
    def grow(self, sequence: int, tokens: int) -> bool:
        """Give a sequence slots for `tokens` more tokens, which were appended to its text at once; all or none.

        `extend` says when they are computed. False if there is no room.
        """

    @abstractmethod
    def free(self, sequence: int) -> None:
        """A sequence ended, or is preempted and will be allocated again. Its blocks may be kept for later ones."""

    def swap_out(self, sequence: int) -> int | None:
        """Move a sequence to another memory instead of forgetting it. Returns the tokens that move; None, and nothing
        happens, where the manager cannot."""
        return None

    def swap_in(self, sequence: int) -> bool:
        """Bring a sequence back. False if there is no room."""
        raise UnknownSequence(f"no sequence with the id {sequence} is swapped out")


class ReplayedManager(Manager):
    """A manager that says where the memory is, as replays ask after each step."""

    @property
    def evictions(self) -> int:
        """Blocks that were kept for later sequences and taken for other tokens, so far."""
        return 0

    @abstractmethod
    def accounts(self) -> Accounts:
        """Where the slots are now. Costs time in proportion to the live sequences."""

    @abstractmethod
    def reads(self) -> Reads:
        """What attention reads now, of all live sequences."""


class AccountedManager(ReplayedManager):
    """A manager of ids alone, which can fork sequences.

    `append` and `grow` are `give`. A manager that knows which tokens are computed inherits `grow` alone.
    """

    def append(self, sequences: Sequence[int]) -> bool:
        return self.give(sequences, 1)

    def grow(self, sequence: int, tokens: int) -> bool:
        return self.give([sequence], tokens)

    @abstractmethod
    def give(self, sequences: Sequence[int], tokens: int) -> bool:
        """Give each of these sequences slots for so many more tokens; all or none. False if there is no room."""

    @abstractmethod
    def table(self, sequence: int) -> Sequence[int]:
        """The blocks (chunks, slots) of a sequence, in order."""

    @abstractmethod
    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        """Add a sequence with the same tokens so far (parallel sampling, beam search); `text` tells how it goes on.

        False if there is no room.
        """

    def check_answers(self, text: Text, answers: int) -> None:
        """Raise NeverFits unless an empty memory holds so many answers of this text's length, which share the full
        blocks of its prompt."""
        size = self.block_tokens
        shared, blocks = text.prompt // size, self.capacity // size
        needed = shared + answers * (-(-text.total // size) - shared)
        if needed > blocks:
            raise NeverFits(f"{answers} answers of {text.total} tokens with prompt need {needed} blocks of {blocks}")
