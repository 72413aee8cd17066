"""Beam search: the likeliest answers to a prompt, found by continuing the best beginnings side by side.

The rules are those of `generate(num_beams=...)` of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple

import torch

from chunkbench.server.engine.logprobs import largest


@dataclass(frozen=True)
class BeamOptions:
    """The parameters of a beam search that a client may choose."""

    length_penalty: float = 1.0
    """A finished beam of n tokens has the score: sum of its log-probabilities / n ** length_penalty."""
    early_stopping: bool = False
    """If True, the search ends when there are as many finished beams as answers. If False, the search then goes on
    while the best running beam has a better score than the worst finished beam."""


class Beam(list[tuple[float, int]]):
    """Pairs of a log-probability and a token id: the likeliest next tokens of a beam."""


class Continuation(NamedTuple):
    """A beam with one more token."""

    score: float
    """Sum of the log-probabilities of its tokens."""
    beam: int
    """Index of the beam that it continues."""
    token: int


class Finished(NamedTuple):
    """A complete answer."""

    score: float
    tokens: list[int]


class BeamSearch:
    """The search for `width` answers of at most `most` tokens. `ends`: token ids that end an answer."""

    def __init__(self, width: int, most: int, ends: frozenset[int], options: BeamOptions) -> None:
        self.width = width
        self.candidates = max(2, 1 + len(ends)) * width
        """Number of continuations that are looked at in each step, so that `width` of them can go on."""
        self._most = most
        self._ends = ends
        self._options = options
        self.restart()

    def restart(self) -> None:
        """Begin again with one beam without tokens."""
        self.finished: list[Finished] = []
        """The best finished answers so far, best first."""
        self.beams: list[Finished] = [Finished(0.0, [])]
        """The running beams, best first, with their sums of log-probabilities."""

    def advance(self, rows: Sequence[Beam]) -> list[Continuation]:
        """Continue the beams by one token. `rows`: for each beam, its likeliest next tokens, each with its
        log-probability. Returns the beams that go on, best first; none when the search has ended."""
        options, length = self._options, len(self.beams[0].tokens) + 1
        found = [
            Continuation(beam.score + logprob, place, token)
            for place, (beam, row) in enumerate(zip(self.beams, rows, strict=True))
            for logprob, token in row
        ]
        best = nlargest(self.candidates, found, key=lambda one: one.score)
        over = [length == self._most or one.token in self._ends for one in best]
        if len(self.finished) < self.width or not options.early_stopping:
            more = [
                Finished(one.score / length**options.length_penalty, [*self.beams[one.beam].tokens, one.token])
                for one, ended in zip(best[: self.width], over, strict=False)
                if ended
            ]
            self.finished = sorted([*self.finished, *more], key=lambda one: -one.score)[: self.width]
        going = [one for one, ended in zip(best, over, strict=True) if not ended][: self.width]
        if len(self.finished) == self.width and going:
            possible = going[0].score / length**options.length_penalty
            if options.early_stopping or possible <= self.finished[-1].score:
                going = []
        self.beams = [Finished(one.score, [*self.beams[one.beam].tokens, one.token]) for one in going]
        return going


def likeliest(logits: torch.Tensor, count: int) -> list[Beam]:
    """For each row of logits `[n, vocabulary]`, its `count` likeliest tokens, best first, each with its
    log-probability."""
    logits = logits.float()
    values, ids = largest(logits, min(count, logits.shape[-1]))
    logprobs = (values - logits.logsumexp(-1)[:, None]).tolist()
    return [Beam(zip(*row, strict=True)) for row in zip(logprobs, ids.tolist(), strict=True)]
