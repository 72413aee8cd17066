"""Drafts of speculative decoding: tokens of a sequence that one step verifies together, as a chain or as a tree."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Literal

MOST_ROWS = 256
"""Largest number of query rows of a sequence."""
CHAIN = "chain"
"""The draft in which each token follows the one before it."""
Drafts = Literal["none", "chains", "trees"]
"""The drafts that an implementation can verify. `none`: it takes one query row of a sequence."""


@lru_cache
def parents_of(draft: str) -> tuple[int, ...] | None:
    """Index of the parent of each token of a draft, -1 for those of the first level. None for a chain.

    A tree is the numbers of its tokens level by level, such as `1 4 8 19`. The tokens of a level are divided evenly
    among those of the level before it. One level is a star: its tokens follow the context. Raises ValueError.
    """
    if draft == CHAIN:
        return None
    levels = [int(count) if count.isdecimal() else 0 for count in draft.split()]
    if not levels or min(levels) < 1:
        raise ValueError(f"{draft!r:.60} is no draft: chain, or the tokens of each level of a tree, such as 1 4 8 19")
    if sum(levels) > MOST_ROWS:
        raise ValueError(f"{draft!r:.60} has {sum(levels)} tokens, {MOST_ROWS} at most")
    parents, first = [-1] * levels[0], 0
    for before, count in pairwise(levels):
        parents += [first + token * before // count for token in range(count)]
        first += before
    return tuple(parents)


def seen_pairs(rows: int, draft: str) -> int:
    """Number of pairs of a row and a token of the draft that the row reads."""
    parents = parents_of(draft)
    if parents is None:
        return rows * (rows + 1) // 2
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return sum(depths)


def why_not_verified(rows: int, draft: str, drafts: Drafts) -> str:
    """Why something that verifies such drafts cannot verify this one; empty if it can."""
    if rows == 1 or drafts == "trees" or (drafts == "chains" and draft == CHAIN):
        return ""
    return "takes one query row of a sequence" if drafts == "none" else "verifies chains, no trees"
