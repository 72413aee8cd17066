"""Planners decide which segments of a forest are read together with the segments before them. Integers only.

A segment is *merged* if its rows read it and the segment before it in one item. If no segment is merged, there is one
item per segment. If all segments are merged, there is one item per row. All planners use the same kernels and the same
cut of items for a machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.integers import Bools, Ints
from chunkbench.kernels.plan import Plan

Planner = Callable[[Plan, int], Bools]
"""A function that decides for each segment of a plan whether it is merged with the segment before it. The second
argument is the number of query heads per KV head. Results for segments that begin a sequence have no effect."""

MOST_MERGED = 64
"""Largest number of consecutive shared segments that are read together. This limits the work for deep trees."""


class Costs(NamedTuple):
    """Costs of a kernel. The unit is the time to compute one token for one query. The defaults are measured on CPUs
    (docs/notes/cpu-tried.md)."""

    item: float = 0
    """Fixed cost of an item."""
    partial: float = 160
    """Cost of one partial result, which one item writes and another item reads."""
    chunk: float = 32
    """Fixed cost of reading a chunk again, as a number of additional tokens of the chunk."""
    reread_queries: float = 2
    hidden_queries: float = 24
    """Cost of reading a token again that another item has just read. For an item of no queries it is the arithmetic
    of `reread_queries` queries. It falls linearly with the number of queries, because a core reads ahead while it
    computes, and would be 0 at `hidden_queries`. It stays at least an eighth of `reread_queries`."""
    fewest_queries: int = 4
    """With fewer queries than this, an item of several rows is not faster than one item per row."""

    def reread(self, queries: Ints) -> npt.NDArray[np.float64]:
        """Cost of reading a token once more for `queries` queries, besides the arithmetic."""
        return self.reread_queries * np.maximum(0.125, 1 - queries / self.hidden_queries)


CPU = Costs()


def node_wise(plan: Plan, group: int) -> Bools:
    """Makes an item for each segment. This is DeFT-Node, and the chunk-first phase of the ChunkAttention paper."""
    return np.zeros(len(plan.begins), np.bool_)


def flat(plan: Plan, group: int) -> Bools:
    """Makes an item for each row, like flash decoding: every row reads all its chunks by itself."""
    return np.ones(len(plan.begins), np.bool_)


def cascade(plan: Plan, group: int) -> Bools:
    """Makes an item for the first segment of each tree, and an item for the rest of each row.

    These are the two levels of Hydragen, and of FlashInfer's cascade. A cascade of all levels is `node_wise`.
    """
    return plan.parents[plan.parents] >= 0


def two_phase(plan: Plan, group: int, costs: Costs = CPU) -> Bools:
    """Gives a shared segment its own item if this saves more time than the item and its partial results cost.

    Otherwise each item of a later segment reads the segment again, with all segments that are merged before it. The
    first of these items reads from memory, the others from the cache. So the cost of a segment depends on the number of
    segments that are merged before it. The costs are computed for each such number, beginning with the deepest
    segments.
    """
    widths = plan.ends - plan.begins
    queries, shared = widths * group, np.flatnonzero(widths > 1)
    lengths, reread = plan.lengths * float(plan.chunk_size + costs.chunk), costs.reread(queries)
    most = np.where(queries < costs.fewest_queries, np.inf, costs.item + costs.partial * queries)

    def are_long(more: int | Ints) -> bool:
        """Whether, for every shared segment, `more` additional reads cost more than an item and its partial results."""
        return bool((more * reread * lengths > most)[shared].all())

    # If a segment is merged, each of the two or more segments after it reads it.
    if are_long(1) or are_long(np.maximum(1, np.bincount(plan.parents + 1, minlength=len(widths) + 1)[1:] - 1)):
        return node_wise(plan, group)
    parents = plan.parents
    depths = {-1: -1}  # -1 stands for the parent of segments that begin a sequence
    for segment, parent in zip(shared.tolist(), parents[shared].tolist(), strict=True):
        depths[segment] = depths[parent] + 1
    depth = np.fromiter(depths.values(), np.int64)[1:]
    levels = [shared[depth == level] for level in range(depth.max() + 1)]
    place = np.zeros(len(widths), np.int64)  # of each segment in its level
    # Tokens of each segment of a level with the 0, 1, 2, ... segments before it.
    tokens: list[npt.NDArray[np.float64]] = []
    for level, segments in enumerate(levels):
        place[segments] = np.arange(len(segments))
        run = np.repeat(lengths[segments, None], min(level + 1, MOST_MERGED), 1)
        if level:
            run[:, 1:] += tokens[-1][place[parents[segments]], : run.shape[1] - 1]
        tokens.append(run)
    behind = np.bincount(parents + 1, widths, len(widths) + 1)[1:]
    private = np.bincount(parents + 1, widths == 1, len(widths) + 1)[1:]
    ending = widths - behind  # rows without a later segment are one item, also if the segment is merged
    ends = ending > 0
    reread_merged = private * costs.reread(np.array(group)) + ends * costs.reread(ending * group)
    made = most - costs.partial * group * ending - costs.item * ends
    apart_before: list[Bools] = []
    cost = np.zeros((0, 1))
    for level in reversed(range(len(levels))):
        segments, run = levels[level], tokens[level]
        merged_cost = run * reread_merged[segments, None]
        apart_cost = run * reread[segments, None] + made[segments, None]
        if level + 1 < len(levels):
            at = place[parents[levels[level + 1]]]
            np.add.at(merged_cost[:, : cost.shape[1] - 1], at, cost[:, 1:])
            np.add.at(apart_cost, at, cost[:, :1])
        merged_cost[:, MOST_MERGED - 1 :] = np.inf
        apart_before.insert(0, apart_cost < merged_cost)
        cost = np.minimum(apart_cost, merged_cost)
    apart = np.zeros(len(widths) + 1, np.bool_)
    before = np.full(len(widths) + 1, -1)  # number of segments that each segment is merged with
    for segments, choice in zip(levels, apart_before, strict=True):
        before[segments] = np.where(apart[parents[segments]], 0, before[parents[segments]] + 1)
        apart[segments] = choice[np.arange(len(segments)), before[segments]]
    merged: Bools = ~apart[parents] & (parents >= 0)
    return merged


def tree_fused(plan: Plan, group: int) -> Bools:
    """FastTree's greedy split (section 4.2). Compares the cost of padded tiles with the cost of partial results. Uses
    FastTree's constants for an H100."""
    alpha, beta, gamma, kv_tile = 0.66, 0.33, 0.1, 32
    large, small = max(1, 64 // group), max(1, 16 // group)

    def products(rows: int, tokens: int) -> float:
        tile = large if rows > small else small
        empty_queries, empty_tokens = -rows % tile, max(0, kv_tile - tokens)
        return alpha * empty_queries * group * tokens + beta * empty_tokens * rows * group

    def merges(rows: int, tokens: int, below: int, own: int) -> bool:
        apart = products(rows, tokens) + products(below, own) + gamma * below
        return apart > products(rows - below, tokens) + products(below, tokens + own)

    return _greedy(plan, merges)


def pack(plan: Plan, group: int) -> Bools:
    """PAT's pack scheduler (section 5.1, as in PAT's code). Compares the additional reads of an additional pack with
    the partial results that it saves."""
    most = max(1, 64 // group)

    def packs(rows: int) -> int:
        return -(-rows // most)

    def merges(rows: int, tokens: int, below: int, own: int) -> bool:
        return rows == below or (packs(rows) - packs(rows - below) - packs(below)) * tokens + 4 * below >= 0

    return _greedy(plan, merges)


def _greedy(plan: Plan, merges: Callable[[int, int, int, int], bool]) -> Bools:
    """Decide for each segment whether it is merged. Segments are visited from the roots down, children in order.

    `merges` gets four numbers: the rows that the parent still has, the tokens of the parent and the segments merged
    with it, and the rows and the tokens of the child.
    """
    parents = plan.parents.tolist()
    widths = (plan.ends - plan.begins).tolist()
    rows, tokens = list(widths), (plan.lengths * plan.chunk_size).tolist()
    merged = np.zeros(len(parents), np.bool_)
    for child, parent in enumerate(parents):
        if parent >= 0 and merges(rows[parent], tokens[parent], widths[child], tokens[child]):
            merged[child] = True
            rows[parent] -= widths[child]
            tokens[child] += tokens[parent]
    return merged
