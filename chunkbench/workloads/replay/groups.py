"""Requests with several answers to one prompt: parallel sampling and beam search (PagedAttention)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from chunkbench.attention.manager import (
    AccountedManager,
    Accounts,
    LiveSequences,
    Manager,
    Reads,
    ReplayedManager,
)
from chunkbench.attention.text import Text


@dataclass
class _Group:
    text: Text
    known: int
    """Tokens of prompt and answer that were known when the request was allocated."""
    sequences: list[int]
    """Ids of the request's sequences. There is one until the whole prompt has slots, then one for each answer."""
    decodes: bool = False


class AnswerGroups(ReplayedManager):
    """A cache manager for requests that have `width` answers of one length to one prompt. Callers see a request as one
    sequence.

    Parallel sampling: each answer grows independently. Beam search: after each token, `width` new beams replace the old
    beams. Each new beam continues an old beam, which is drawn at random with equal chances. Old beams that no new beam
    continues are freed. Real beam search chooses by the model's scores, but traces have no scores.

    After a preemption, the answers of a request share only the prompt. A request never fits if the memory cannot hold
    all its answers with only the prompt shared.
    """

    _live: LiveSequences[_Group]

    def __init__(self, manager: AccountedManager, width: int, beam: bool, seed: int) -> None:
        super().__init__(manager.capacity, manager.block_tokens)
        self._manager, self._width, self._beam = manager, width, beam
        self._chance = random.Random(f"beams {seed}")
        self._fresh = count()
        self._prompt_tokens = self._used_tokens = 0
        self._finds = type(manager).cached is not Manager.cached
        """Whether requests share common prefixes of their prompts."""
        self._prompts = 0
        """Tokens of the prompts of requests that decode; shared tokens count once."""
        self._keys: Counter[int] = Counter()
        """Key of a full block of a prompt -> number of decoding requests that have the block; empty if requests share
        nothing.
        """

    @property
    def prompt_share(self) -> float:
        """Share of the used memory that holds prompts, over all steps that decode answers. A prompt counts once, even
        if each answer has a copy.
        """
        return self._prompt_tokens / self._used_tokens if self._used_tokens else 0.0

    @property
    def slots_held(self) -> int:
        return self._manager.slots_held

    @property
    def evictions(self) -> int:
        return self._manager.evictions

    def accounts(self) -> Accounts:
        return self._manager.accounts()

    def reads(self) -> Reads:
        return self._manager.reads()

    def cached(self, text: Text) -> int:
        return self._manager.cached(text)

    def allocate(self, sequence: int, text: Text, known: int, spare: int = 0) -> int | None:
        self._live.check_new(sequence, known)
        self._manager.check_answers(text, self._width)
        first = next(self._fresh)
        cached = self._manager.allocate(first, text, text.prompt, spare * self._width)
        if cached is None:
            return None
        group = self._live[sequence] = _Group(text, known, [first])
        if len(self._manager.table(first)) * self.block_tokens >= text.prompt and not self._fill(group):
            self.free(sequence)
            return None
        return cached

    def computed_tokens(self, sequence: int) -> int:
        return self._manager.computed_tokens(self._live[sequence].sequences[0])

    def extend(self, sequence: int, tokens: int) -> bool:
        group = self._live[sequence]
        first, prompt = group.sequences[0], group.text.prompt
        if tokens < group.known:
            return self._manager.extend(first, min(tokens, prompt))
        if len(group.sequences) < self._width:
            # Computed blocks stay in caches. So nothing is computed before all answers are known to have room.
            if not self._room(group):
                return False
            self._manager.extend(first, prompt)
            self._fill(group)
        answers = group.known - prompt  # above 0 after a preemption
        if answers and not self._manager.give(group.sequences, answers):
            return False
        return all(self._manager.extend(one, group.known) for one in group.sequences)

    def append(self, sequences: Sequence[int]) -> bool:
        groups = [self._live[sequence] for sequence in sequences]
        if not self._manager.append([one for group in groups for one in group.sequences]):
            return False
        reads = self._manager.reads()
        self._used_tokens += reads.private + reads.shared
        for group in groups:
            if not group.decodes:
                group.decodes = True
                self._prompts += self._alone(group)
                self._keys.update(self._shared_keys(group))
            if self._beam:
                self._survive(group)
        self._prompt_tokens += self._prompts
        return True

    def grow(self, sequence: int, tokens: int) -> bool:
        return self._manager.give(self._live[sequence].sequences, tokens)

    def free(self, sequence: int) -> None:
        group = self._live[sequence]
        for one in group.sequences:
            self._manager.free(one)
        if group.decodes:
            self._keys -= Counter(self._shared_keys(group))
            self._prompts -= self._alone(group)
        del self._live[sequence]

    def _shared_keys(self, group: _Group) -> list[int]:
        full = group.text.prompt // self.block_tokens if self._finds else 0
        return group.text.keys(self.block_tokens)[:full].tolist() if full else []

    def _alone(self, group: _Group) -> int:
        """Number of tokens of the group's prompt that no other decoding request has."""
        known = sum(self._keys[key] > 0 for key in self._shared_keys(group))
        return group.text.prompt - known * self.block_tokens

    def _fill(self, group: _Group) -> bool:
        """Give each answer a sequence. False if there is no room for all; then only some answers have a sequence."""
        group.sequences += self._twins(group.sequences[0], self._width - 1, group)
        return len(group.sequences) == self._width

    def _room(self, group: _Group) -> bool:
        """Whether all answers of a group fit, if only the first has blocks so far."""
        size = self.block_tokens
        shared, blocks = group.text.prompt // size, -(-group.known // size)
        needed = blocks - len(self._manager.table(group.sequences[0])) + (self._width - 1) * (blocks - shared)
        return needed * size <= self.capacity - self.slots_held

    def _twins(self, first: int, number: int, group: _Group) -> list[int]:
        """Fork the sequence `first` up to `number` times. Returns the forks: fewer if there is no room."""
        twins: list[int] = []
        while len(twins) < number:
            twin = next(self._fresh)
            if not self._manager.fork(first, twin, group.text):
                break
            twins.append(twin)
        return twins

    def _survive(self, group: _Group) -> None:
        """Draw the parent of each new beam: fork parents with several new beams, and free beams without any. There is
        always room: as many beams are freed as forks are made.
        """
        successors = [0] * len(group.sequences)
        for _ in range(self._width):
            successors[self._chance.randrange(len(successors))] += 1
        parents = [(one, number) for one, number in zip(group.sequences, successors, strict=True) if number]
        for one, number in zip(group.sequences, successors, strict=True):
            if number == 0:
                self._manager.free(one)
        group.sequences = [one for one, _ in parents]
        for one, number in parents:
            group.sequences += self._twins(one, number - 1, group)
        assert len(group.sequences) == self._width
