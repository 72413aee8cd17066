"""Draws prompts of token ids with shared prefixes, as the experiments on kernels use them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count as count_from

from chunkbench.bench.experiment.forest import PromptSegment, walk_tree
from chunkbench.bench.experiment.terms import TreeNode
from chunkbench.traffic.texts import TextIds


@dataclass(frozen=True)
class Prompts:
    """Length of prompts, and the prefixes that they share. The fields are named like the axes of experiments."""

    n_p: int
    """Number of tokens of a prompt."""
    n_s: int = 0
    """Number of leading tokens that prompts share."""
    prompts: int = 1
    """Number of different shared prefixes; request i has prefix i modulo `prompts`."""
    tree: tuple[TreeNode, ...] | None = None
    """A forest of shared prefixes, in place of `n_s` and `prompts`. Requests take its sequences in turn."""

    def __post_init__(self) -> None:
        if self.n_p < 1 or self.n_s < 0 or self.prompts < 1:
            raise ValueError("n_p and prompts must be at least 1, n_s at least 0")
        longest = max(sum(segment.tokens for segment in path) for path in self.paths())
        if longest > self.n_p:
            raise ValueError(f"{longest} shared tokens do not fit into prompts of n_p = {self.n_p} tokens")

    def paths(self) -> list[Sequence[PromptSegment]]:
        """The shared segments of each sequence, from the root on. Request i uses path i modulo the number of paths."""
        if self.tree is None:
            return [[PromptSegment(root, self.n_s)] for root in range(self.prompts)]
        ids = count_from()
        return [path for node in self.tree for path in walk_tree(node, (), ids)]


def draw_prompts(
    prompts: Prompts, count: int, vocabulary: int, seed: int | str, texts: TextIds | None = None
) -> list[tuple[int, ...]]:
    """Draw the token ids of `count` prompts: random ids below `vocabulary`, or ids of `texts`.

    Shared tokens also depend on the seed. With a new seed, a server's cache holds no prefix of the prompts from an
    earlier measurement. If ids are random, the first private token of request i is i modulo `vocabulary`. So requests
    share only tokens of their paths.
    """

    def draw(purpose: str, tokens: int, shared: bool) -> list[int]:
        return _tokens(purpose, tokens, vocabulary) if texts is None else texts.draw(purpose, tokens, shared)

    paths = prompts.paths()
    segments = {segment for path in paths for segment in path}
    shared = {segment.id: draw(f"{seed} segment {segment.id}", segment.tokens, True) for segment in segments}
    drawn = []
    for number in range(count):
        path = paths[number % len(paths)]
        head = [token for segment in path for token in shared[segment.id]]
        tail = draw(f"{seed} request {number}", prompts.n_p - len(head), False)
        if tail and texts is None:  # no two requests share more than asked for
            tail[0] = number % vocabulary
        drawn.append((*head, *tail))
    return drawn


def _tokens(purpose: str, count: int, vocabulary: int) -> list[int]:
    chance = random.Random(f"tokens {purpose}")
    return [chance.randrange(vocabulary) for _ in range(count)]
