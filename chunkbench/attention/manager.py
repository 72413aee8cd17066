"""The interface of cache managers. A manager decides which token slots of K/V memory each sequence has. Ids only, no
tensors."""

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
    """The use of the memory's token slots. The first six numbers add up to the capacity."""

    used: int
    """Slots that hold a token of a live sequence. A slot that several sequences share counts once."""
    reserved: int
    """Allocated slots that sequences will fill later."""
    internal_fragmentation: int
    """Allocated slots that no token will ever fill (internal fragmentation)."""
    external_fragmentation: int
    """Slots that no sequence has, but that the waiting sequence cannot get (external fragmentation)."""
    evictable: int
    """Slots with tokens of sequences that ended, kept for later sequences."""
    free: int
    """Empty slots that sequences can get."""
    covered: int
    """Tokens of all live sequences. A shared token counts once for each sequence, so sharing saves `covered - used`
    slots."""

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
        """Number of slots that sharing saves."""
        return self.covered - self.used


@dataclass(frozen=True)
class Reads:
    """Numbers of tokens that one attention step reads."""

    private: int
    """Tokens that only one sequence covers."""
    shared: int
    """Tokens that several sequences cover, each counted once."""
    shared_covered: int
    """The tokens that several sequences cover, counted once for each sequence."""


class LiveSequences(dict[int, L]):
    """Id of each live sequence -> the manager's record of the sequence."""

    def __missing__(self, sequence: int) -> L:
        raise UnknownSequence(f"no live sequence has the id {sequence}")

    def check_new(self, sequence: int, tokens: int = 1) -> None:
        """Raise ValueError if the id is in use, EmptySequence if the sequence would have no token."""
        if sequence in self:
            raise ValueError(f"sequence {sequence} lives already")
        if tokens < 1:
            raise EmptySequence("a sequence needs at least one token")


class Manager(ABC):
    """A K/V cache manager. Sequences have ids that the caller chooses; an id is free again once the sequence left.

    An operation that returns None or False for lack of memory changes nothing. Unknown ids raise `UnknownSequence`.
    A manager that shares nothing between sequences, and gives a prompt all its slots when it is allocated, inherits
    `cached`, `computed_tokens` and `extend`.
    """

    block_tokens: int
    """Tokens of a block (chunk, page); 1 if memory is not divided into blocks."""
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
        """Slots in the blocks of live sequences; a shared block counts once."""

    def cached(self, text: Text) -> int:
        """Number of leading tokens of the prompt that an allocation would find now. Changes nothing, not even times of
        last use."""
        return 0

    @abstractmethod
    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        """Admit a sequence with the first `known` tokens of a text: the prompt and, after a preemption, the answer so
        far.

        Room for `spare` more blocks must remain, for sequences that grow. Returns the number of leading tokens that
        need not be computed, or None if there is no room now. The number is at most `known - 1`, because the last
        token's logits are needed. Raises NeverFits.
        """

    def computed_tokens(self, sequence: int) -> int:
        """Number of leading tokens whose K and V are in memory or are written in this step. The number also grows when
        another sequence computes tokens that this sequence shares."""
        self._live[sequence]
        return 0

    def extend(self, sequence: int, tokens: int) -> bool:
        """Give slots to the first `tokens` tokens of a prompt. This step computes the prompt up to there. Returns False
        if there is no room."""
        self._live[sequence]
        return True

    @abstractmethod
    def append(self, sequences: Sequence[int]) -> bool:
        """Give each of these sequences a slot for one more token, which this step computes.

        Changes nothing and returns False if there is no room for all.
        """

    @abstractmethod
    def grow(self, sequence: int, tokens: int) -> bool:
        """Give a sequence slots for `tokens` more tokens, which were appended to its text at once.

        Later calls of `extend` say which step computes these tokens. Changes nothing and returns False if there is no
        room for all of them.
        """

    @abstractmethod
    def free(self, sequence: int) -> None:
        """Free a sequence that ended, or that is preempted and will be allocated again. The manager may keep its blocks
        for later sequences."""

    def swap_out(self, sequence: int) -> int | None:
        """Move a sequence to another memory instead of freeing it. Returns the number of tokens that move. A manager
        that cannot swap does nothing and returns None."""
        return None

    def swap_in(self, sequence: int) -> bool:
        """Bring back a sequence that was swapped out. Returns False if there is no room."""
        raise UnknownSequence(f"no sequence with the id {sequence} is swapped out")


class ReplayedManager(Manager):
    """A manager that can also say how its memory is used. Replays ask for this after each step."""

    @property
    def evictions(self) -> int:
        """Number of kept blocks that were reused for other tokens so far."""
        return 0

    @abstractmethod
    def accounts(self) -> Accounts:
        """The current use of the slots. Takes time in proportion to the number of live sequences."""

    @abstractmethod
    def reads(self) -> Reads:
        """The tokens that attention of all live sequences reads now."""


class AccountedManager(ReplayedManager):
    """A manager that can also fork sequences.

    `append` and `grow` give slots in the same way, through `give`. But only the tokens of `append` are computed in this
    step. A subclass that records which tokens are computed overrides `append`.
    """

    def append(self, sequences: Sequence[int]) -> bool:
        return self.give(sequences, 1)

    def grow(self, sequence: int, tokens: int) -> bool:
        return self.give([sequence], tokens)

    @abstractmethod
    def give(self, sequences: Sequence[int], tokens: int) -> bool:
        """Give each of these sequences slots for `tokens` more tokens. Changes nothing and returns False if there is no
        room for all."""

    @abstractmethod
    def table(self, sequence: int) -> Sequence[int]:
        """The blocks (chunks, slots) of a sequence, in order."""

    @abstractmethod
    def fork(self, sequence: int, twin: int, text: Text) -> bool:
        """Add a copy of a sequence, with the id `twin` (parallel sampling, beam search). `text`: the tokens of the
        copy.

        Returns False if there is no room.
        """

    def check_answers(self, text: Text, answers: int) -> None:
        """Raise NeverFits unless an empty memory can hold `answers` sequences of this text's length. The sequences
        share the full blocks of the prompt."""
        size = self.block_tokens
        shared, blocks = text.prompt // size, self.capacity // size
        needed = shared + answers * (-(-text.total // size) - shared)
        if needed > blocks:
            raise NeverFits(
                f"{answers} answers of {text.total} tokens with prompt need {needed} blocks; the memory has {blocks}"
            )
