"""What forks of one request share: parallel sampling and beam search (PagedAttention)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from chunkbench.kvcache.managers.manager import AccountedManager
from chunkbench.traces.replayed import ReplayRequest


@dataclass(frozen=True)
class ForkMemory:
    """Tokens summed over the steps of requests that run alone, each with several sequences."""

    covered: int
    """Tokens of all sequences, each by itself: what they would hold without sharing."""
    used: int
    """Tokens that the memory holds."""
    prompt: int
    """Tokens of the prompts, once for each request and step."""

    @property
    def saved(self) -> float:
        """Share of the memory that sharing saves."""
        return 1 - self.used / self.covered

    @property
    def prompt_share(self) -> float:
        """Share of the prompts in what the memory holds."""
        return self.prompt / self.used


def fork_memory(
    requests: Iterable[ReplayRequest], manager: AccountedManager, width: int, beam: bool, seed: int
) -> ForkMemory:
    """Run requests one after the other, each with `width` sequences behind one prompt.

    Parallel sampling: the sequences go on independently. Beam search: after each token, each of the `width` places
    takes the sequence of a parent drawn uniformly among all places, by `seed`; sequences without a successor leave.
    Real beams follow the model's scores, which no trace has. Raises ValueError if the memory is too small.
    """
    chance = random.Random(f"beams {seed}")
    fresh = count()
    covered = used = prompts = 0
    for request in requests:
        text = request.text
        beams = [next(fresh)]
        if manager.allocate(beams[0], text, text.prompt) is None or not manager.extend(beams[0], text.prompt):
            raise ValueError(f"the memory is too small for a prompt of {text.prompt} tokens")
        for _ in range(width - 1):
            beams.append(_fork(manager, beams[0], next(fresh), request))
        for length in range(text.prompt + 1, text.total + 1):
            if not manager.append(beams):
                raise ValueError(f"the memory is too small for {width} sequences of {length} tokens")
            accounts = manager.accounts()
            covered += accounts.covered
            used += accounts.used
            prompts += text.prompt
            if beam:
                beams = _survivors(manager, beams, chance, fresh, request)
        for sequence in beams:
            manager.free(sequence)
    return ForkMemory(covered, used, prompts)


def _survivors(
    manager: AccountedManager, beams: list[int], chance: random.Random, fresh: Iterable[int], request: ReplayRequest
) -> list[int]:
    """The sequences of the next step: each place continues a parent that is drawn."""
    successors = [0] * len(beams)
    for _ in beams:
        successors[chance.randrange(len(beams))] += 1
    for sequence, number in zip(beams, successors, strict=True):
        if number == 0:
            manager.free(sequence)
    names = iter(fresh)
    survivors = []
    for sequence, number in zip(beams, successors, strict=True):
        if number:
            survivors += [sequence, *(_fork(manager, sequence, next(names), request) for _ in range(number - 1))]
    return survivors


def _fork(manager: AccountedManager, sequence: int, twin: int, request: ReplayRequest) -> int:
    if not manager.fork(sequence, twin, request.text):
        raise ValueError("the memory is too small for all sequences of a request")
    return twin
