"""The prefix tree's segments as requests of a paged attention library: integers on the host, no library.

A request is some query rows that follow each other and the blocks that all of them read. A segment of the tree is one
such request once the rows stand in depth-first order, since its sequences are then a contiguous range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chunkbench.kvcache.integers import Ints
from chunkbench.kvcache.plan import Plan

Indices = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Requests:
    """Paged requests in the form that FlashInfer takes: request i has the query rows qo_indptr[i] to qo_indptr[i + 1]
    and the blocks indices[kv_indptr[i]] to indices[kv_indptr[i + 1]], the last of them filled to last_page_len[i]."""

    qo_indptr: Indices
    """`[requests + 1]`"""
    kv_indptr: Indices
    """`[requests + 1]`"""
    indices: Indices
    """`[blocks read]`"""
    last_page_len: Indices
    """`[requests]`, 0 where a request reads nothing."""
    segments: Ints
    """`[requests]`: the segment of the plan that a request reads, -1 for nothing."""

    def grown(self, plan: Plan) -> Requests:
        """The same requests after tokens were appended inside blocks, which leaves the plan as it is."""
        return replace(self, last_page_len=_filled(plan, self.segments))


@dataclass(frozen=True)
class Flat:
    """Every segment a request of one call; the partial results of a row are merged afterwards.

    The call's query rows are `q[rows]`, its results followed by one empty state. `states[row]` are the results that
    make up a row, filled up with the index of the empty state where a row lies under fewer segments than others.
    """

    requests: Requests
    rows: Ints
    """`[r]`: the row of q that each query row of the call repeats."""
    states: Ints
    """`[b, deepest]`; r is the index of the empty state."""


def _filled(plan: Plan, segments: Ints) -> Indices:
    """Tokens in the last block of each of these segments, 0 for segment -1."""
    rows = plan.order[plan.begins[segments]]
    ends_there = plan.last_chunks[rows] == plan.chunks[plan.starts[segments + 1] - 1]
    private = plan.ends[segments] - plan.begins[segments] == 1
    # Blocks that sequences share are full.
    tokens = np.where(private & ends_there, plan.last_tokens[rows], plan.chunk_size)
    return np.where(segments < 0, 0, tokens).astype(np.int32)


def _indptr(counts: Ints) -> Indices:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def flat(plan: Plan) -> Flat:
    """All segments of the forest as requests of one call."""
    covered = plan.ends - plan.begins
    positions = np.concatenate([np.arange(begin, end) for begin, end in zip(plan.begins, plan.ends, strict=True)])
    rows = plan.order[positions]
    # A stable sort keeps the order of the call within a row: the segments of its path from the root on.
    by_row = np.argsort(rows, kind="stable")
    depths = np.bincount(rows, minlength=len(plan.order))
    states = np.full((len(depths), int(depths.max())), len(rows), np.int64)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(depths) - depths, depths)
    states[rows[by_row], places] = by_row
    segments = np.arange(len(covered))
    kv_indptr, indices = plan.starts.astype(np.int32), plan.chunks.astype(np.int32)
    requests = Requests(_indptr(covered), kv_indptr, indices, _filled(plan, segments), segments)
    return Flat(requests, rows, states)


def levels(plan: Plan) -> list[Requests]:
    """The forest level by level, over all query rows in depth-first order.

    Level i holds the segments that are the i-th shared one of their sequences, the last level what each sequence has
    for itself (where any has). Rows that have nothing at a level make up requests without blocks there. A sequence with
    nothing of its own has something at level 0, so merging the last level with level 0 first, then downwards, never
    merges two empty results.
    """
    shared: list[list[int]] = []
    own: list[int] = []
    below: list[int] = []  # where the shared segments end under which we are
    for segment, (begin, end) in enumerate(zip(plan.begins.tolist(), plan.ends.tolist(), strict=True)):
        while below and below[-1] <= begin:
            below.pop()
        if end - begin == 1:
            own.append(segment)
            continue
        if len(below) == len(shared):
            shared.append([])
        shared[len(below)].append(segment)
        below.append(end)
    return [_level(plan, chosen) for chosen in (*shared, own) if chosen]


def _level(plan: Plan, segments: list[int]) -> Requests:
    """The requests of one level: its segments, and a request without blocks for every run of rows between them."""
    qo, chosen = [0], list[int]()
    for segment in segments:
        begin = int(plan.begins[segment])
        if qo[-1] < begin:
            qo.append(begin)
            chosen.append(-1)
        qo.append(int(plan.ends[segment]))
        chosen.append(segment)
    if qo[-1] < len(plan.order):
        qo.append(len(plan.order))
        chosen.append(-1)
    blocks = [plan.chunks[plan.starts[s] : plan.starts[s + 1]] if s >= 0 else plan.chunks[:0] for s in chosen]
    indices = np.concatenate(blocks).astype(np.int32)
    counts = np.array([len(several) for several in blocks])
    ids = np.array(chosen)
    return Requests(np.array(qo, np.int32), _indptr(counts), indices, _filled(plan, ids), ids)
