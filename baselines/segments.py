"""Turns the prefix tree's segments into requests of a paged attention library. Computes integers on the host, and
imports no library.

A request is a contiguous range of query rows and the blocks that all these rows read. If the rows are in depth-first
order, the sequences of a segment are a contiguous range, so each segment is one request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.integers import Ints, ranges
from chunkbench.kernels.items import items_of_forest, number_partials
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.planners import node_wise

Indices = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Requests:
    """Paged requests in FlashInfer's format.

    Request i has the query rows qo_indptr[i] to qo_indptr[i + 1] and the blocks indices[kv_indptr[i]] to
    indices[kv_indptr[i + 1]], ends excluded. Its last block holds last_page_len[i] tokens.
    """

    qo_indptr: Indices
    """`[requests + 1]`: index of each request's first query row, then the number of all rows."""
    kv_indptr: Indices
    """`[requests + 1]`: position in `indices` of each request's first block, then the length of `indices`."""
    indices: Indices
    """`[blocks read]`: ids of the blocks."""
    last_page_len: Indices
    """`[requests]`: number of tokens in the last block of each request, 0 if the request reads no blocks."""
    segments: Ints
    """`[requests]`: index in the plan of the segment that each request reads, -1 if the request reads no blocks."""

    def grown(self, plan: Plan) -> Requests:
        """The same requests after appends that filled more slots of their last blocks."""
        return replace(self, last_page_len=_filled(plan, self.segments))


@dataclass(frozen=True)
class Flat:
    """All segments as requests of one call. Afterwards the caller merges the partial results of each row.

    The call's query rows are `q[rows]`. The caller appends one empty partial result. `states[row]` lists the results to
    merge for a row. Rows with fewer segments than others are padded with the index of the empty result.
    """

    requests: Requests
    rows: Ints
    """`[r]`: for each query row of the call, its row in q."""
    states: Ints
    """`[b, n]`: indices of the results to merge for each row. n is the largest number of segments that a row has; index
    r stands for the empty result."""


def _filled(plan: Plan, segments: Ints) -> Indices:
    """Number of tokens in the last block of each segment, 0 for segment -1."""
    rows = plan.tail_rows[segments]
    tokens = np.where(rows < 0, plan.chunk_size, plan.last_tokens[rows])
    return np.where(segments < 0, 0, tokens).astype(np.int32)


def _indptr(counts: Ints) -> Indices:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def flat(plan: Plan) -> Flat:
    row_counts, segments = plan.ends - plan.begins, np.arange(len(plan.begins))
    items = items_of_forest(plan, node_wise(plan, 1))
    rows = items.rows[ranges(items.first_row, items.row_count)]
    # The results of a row are in the call's order: the segments of its path, from the root down.
    numbers = number_partials(items, segments >= 0, len(plan.order))
    states = np.full((len(plan.order), int(numbers.folds.max())), len(rows), np.int64)
    states[np.arange(states.shape[1]) < numbers.folds[:, None]] = numbers.by_row
    kv_indptr, indices = plan.starts.astype(np.int32), plan.chunks.astype(np.int32)
    requests = Requests(_indptr(row_counts), kv_indptr, indices, _filled(plan, segments), segments)
    return Flat(requests, rows, states)


def levels(plan: Plan) -> list[Requests]:
    """The requests of each level of the prefix tree, over all query rows in depth-first order.

    Level i holds every segment that is the i-th shared segment of its sequences. The last level holds the private
    segments, if there are any. Rows without a segment at a level form requests without blocks.

    The caller merges the results of the last level and of level 0 first, then those of levels 1, 2, ... This order
    never merges two empty results: every row has a private segment, or a shared segment at level 0.
    """
    shared: list[list[int]] = []
    private: list[int] = []
    open_ends: list[int] = []  # ends of the shared segments that enclose the current one
    for segment, (begin, end) in enumerate(zip(plan.begins.tolist(), plan.ends.tolist(), strict=True)):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        if end - begin == 1:
            private.append(segment)
            continue
        if len(open_ends) == len(shared):
            shared.append([])
        shared[len(open_ends)].append(segment)
        open_ends.append(end)
    return [_level(plan, segments) for segments in (*shared, private) if segments]


def _level(plan: Plan, segments: list[int]) -> Requests:
    """The requests of one level: its segments, and a request without blocks for every range of rows between them."""
    qo, of_request = [0], list[int]()
    for segment in segments:
        begin = int(plan.begins[segment])
        if qo[-1] < begin:
            qo.append(begin)
            of_request.append(-1)
        qo.append(int(plan.ends[segment]))
        of_request.append(segment)
    if qo[-1] < len(plan.order):
        qo.append(len(plan.order))
        of_request.append(-1)
    blocks = [plan.chunks[plan.starts[s] : plan.starts[s + 1]] if s >= 0 else plan.chunks[:0] for s in of_request]
    indices = np.concatenate(blocks).astype(np.int32)
    counts = np.array([len(chunks) for chunks in blocks])
    ids = np.array(of_request)
    return Requests(np.array(qo, np.int32), _indptr(counts), indices, _filled(plan, ids), ids)
