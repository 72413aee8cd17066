"""Planners: which segments of a forest are read together with what comes before them. Integers only.

A segment is *merged* if its rows read it in one item with the segment before it, which then has no item for these
rows. So nothing merged is one item for each segment, and all merged is one item for each row. Kernels and the cut of
items for a machine are the same for all planners: they differ only in what is merged.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chunkbench.kvcache.plan import Plan

Bools = npt.NDArray[np.bool_]
Planner = Callable[[Plan, int], Bools]
"""Whether each segment of a plan is merged with the segment before it; the second argument is the number of query heads
per KV head. Values of segments that begin a sequence have no effect."""

PARTIAL_TOKENS = 104
"""Tokens of arithmetic that take as long as one partial result: written by one item, read by another one."""
REREAD_QUERIES, HIDDEN_QUERIES = 2.0, 20
"""A chunk that another item has just read costs as much time as arithmetic for two queries. Under many queries a core
reads ahead while it computes: the cost falls evenly, to nothing at HIDDEN_QUERIES, but never below an eighth."""
FEWEST_QUERIES = 4
"""With fewer queries, an item of several rows reads no faster than its rows one after the other."""


def node_wise(plan: Plan, group: int) -> Bools:
    """An item for each segment (DeFT-Node; the ChunkAttention paper's chunk-first phase)."""
    return np.zeros(len(plan.begins), np.bool_)


def flat(plan: Plan, group: int) -> Bools:
    """An item for each row, as flash decoding has it: nothing is read once for several rows."""
    return np.ones(len(plan.begins), np.bool_)


def cascade(plan: Plan, group: int) -> Bools:
    """Two levels (Hydragen; FlashInfer's cascade with two levels): the first segment of each tree, then an item for the
    rest of each row. A cascade of all levels is `node_wise`."""
    return plan.parents[plan.parents] >= 0


def two_phase(plan: Plan, group: int) -> Bools:
    """A shared segment has an item of its own if that saves more time than its partial results cost.

    Else the items below it read it, one after the other: all but the first from the cache. Children are decided before
    their parents. The constants are measured (docs/notes/cpu-kernels.md).
    """
    widths = plan.ends - plan.begins
    private, shared = widths == 1, np.flatnonzero(widths > 1)
    if not len(shared):
        return node_wise(plan, group)
    parents, tokens = plan.parents, np.diff(plan.starts) * plan.chunk_size
    # Cost, per token, of reading a segment in the items below it. The last entry collects what begins a sequence.
    behind = np.bincount(parents + 1, private, len(widths) + 1)[1:]
    ending = widths - np.bincount(parents + 1, widths, len(widths) + 1)[1:]  # rows without a segment behind it
    below = [*np.where(private, 0, (behind + ending) * _reread(group)).tolist(), 0.0]
    apart = np.zeros(len(widths) + 1, np.bool_)
    for segment in shared[::-1].tolist():
        queries = int(widths[segment]) * group
        own = _reread(queries)
        saved = (below[segment] - own) * int(tokens[segment])
        apart[segment] = queries >= FEWEST_QUERIES and saved > PARTIAL_TOKENS * queries
        below[int(parents[segment])] += own if apart[segment] else below[segment]
    merged: Bools = ~apart[parents] & (parents >= 0)
    return merged


def _reread(queries: int) -> float:
    """Time to read a chunk from the cache for so many queries, beside their arithmetic; that of one query is 1."""
    return REREAD_QUERIES * max(0.125, 1 - queries / HIDDEN_QUERIES)


def tree_fused(plan: Plan, group: int) -> Bools:
    """FastTree's greedy split (section 4.2): padded tiles against partial results, with its constants for an H100."""
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
    """PAT's pack scheduler (section 5.1, as its code has it): reads of one more pack against partial results."""
    most = max(1, 64 // group)

    def packs(rows: int) -> int:
        return -(-rows // most)

    def merges(rows: int, tokens: int, below: int, own: int) -> bool:
        return rows == below or (packs(rows) - packs(rows - below) - packs(below)) * tokens + 4 * below >= 0

    return _greedy(plan, merges)


def _greedy(plan: Plan, merges: Callable[[int, int, int, int], bool]) -> Bools:
    """Decide segment by segment from the roots on, children in order.

    `merges` gets the rows that the parent still has, its tokens with those that it was merged with, and the rows and
    the tokens of the child.
    """
    parents = plan.parents.tolist()
    widths = (plan.ends - plan.begins).tolist()
    rows, tokens = list(widths), (np.diff(plan.starts) * plan.chunk_size).tolist()
    merged = np.zeros(len(parents), np.bool_)
    for child, parent in enumerate(parents):
        if parent >= 0 and merges(rows[parent], tokens[parent], widths[child], tokens[child]):
            merged[child] = True
            rows[parent] -= widths[child]
            tokens[child] += tokens[parent]
    return merged
