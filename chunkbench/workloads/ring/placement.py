"""Schemes: which tokens each rank holds, how they move, and which keys of a block a rank's queries see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from chunkbench.kernels.integers import Ints

Layout = Literal["contiguous", "striped", "zigzag"]
"""The tokens that rank r of N holds.

contiguous: one block of consecutive tokens. striped: the tokens r, r + N, r + 2N and so on. zigzag: the blocks r and 2N
- 1 - r of 2N blocks.
"""


Movement = Literal["ring", "gather", "none", "merge"]
"""How ranks get K and V that they do not hold.

ring: K and V travel from rank to rank while they are used. gather: every rank first gathers all K and V. none: every
rank holds all K and V from the start. merge: K and V stay, and partial results are merged.
"""


@dataclass(frozen=True)
class Scheme:
    """A way to compute attention on several ranks. `ranks` is the number of ranks that compute, or None for all."""

    layout: Layout
    movement: Movement
    kernel: str
    """`native`, `flash`, or a name in `chunkbench.workloads.ring.peers`."""
    ranks: int | None = None


def positions(layout: Layout, tokens: int, ranks: int, rank: int) -> Ints:
    """The tokens of a rank in ascending order. `tokens` must be a multiple of 2 * ranks."""
    if layout == "striped":
        return np.arange(rank, tokens, ranks)
    if layout == "contiguous":
        return np.arange(tokens // ranks) + rank * (tokens // ranks)
    half = np.arange(tokens // (2 * ranks))
    return np.concatenate([half + rank * len(half), half + (2 * ranks - 1 - rank) * len(half)])


def visible(queries: Ints, keys: Ints, causal: bool) -> Ints:
    """Number of leading keys of a block that each query sees. Both `queries` and `keys` must be in ascending order."""
    if causal:
        return np.searchsorted(keys, queries, side="right")
    return np.full(len(queries), len(keys))


def pairs(layout: Layout, tokens: int, ranks: int, rank: int, causal: bool) -> int:
    """Pairs of query and key that a rank computes in a pass, at 4 * heads * head_dim FLOPs each."""
    own = positions(layout, tokens, ranks, rank)
    return int((own + 1).sum()) if causal else len(own) * tokens
