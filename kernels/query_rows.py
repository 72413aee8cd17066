"""Steps in which a sequence has several query rows: the tokens of a draft that are verified together. Integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from chunkbench.draft import MOST_ROWS, Drafts
from chunkbench.kernels.integers import Ints, ranges
from chunkbench.kernels.items import Items
from chunkbench.kernels.plan import Plan

EVERYTHING = 1 << 60
"""Window of a row that reads all tokens."""


@dataclass(frozen=True, eq=False)
class QueryRows:
    """The query rows of each sequence. Its last `counts[i]` tokens have a row each, in token order.

    The last tokens are a draft: a row reads all tokens before the draft, and of the draft itself and its ancestors.
    Speculative decoding verifies such drafts.
    """

    counts: Ints
    """`[b]`: rows of each sequence, 1 to MOST_ROWS."""
    parents: tuple[int, ...] | None = None
    """Index in the draft of the parent of each token, -1 for roots; all drafts are then this tree. None: each token's
    parent is the token before it."""

    @classmethod
    def alike(cls, batch: int, count: int, parents: tuple[int, ...] | None = None) -> QueryRows:
        """`count` rows for each of `batch` sequences."""
        return cls(np.full(batch, count), parents)

    @cached_property
    def starts(self) -> Ints:
        """`[b]`: the first row of each sequence."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def total(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def drafts(self) -> Drafts:
        """What a kernel must be able to verify."""
        if self.total == len(self.counts):
            return "none"
        return "chains" if self.parents is None else "trees"

    @property
    def usual(self) -> int:
        """Rows of a sequence, for planners, which take one number for all sequences."""
        return max(1, round(self.total / max(1, len(self.counts))))

    @cached_property
    def behind(self) -> Ints:
        """`[rows]`: number of tokens of the sequence after the row's own one."""
        return self.of_sequences(self.starts + self.counts - 1) - np.arange(self.total)

    @cached_property
    def hidden(self) -> npt.NDArray[np.uint64]:
        """`[rows, 4]`: bit i of a row: the row does not read the token of its sequence that i tokens follow."""
        none = np.empty((0, MOST_ROWS // 64), np.uint64)
        return np.concatenate([none, *(_hidden(count, self.parents) for count in self.counts.tolist())])

    def same_as(self, other: QueryRows | None) -> bool:
        if other is self:
            return True
        return other is not None and other.parents == self.parents and np.array_equal(other.counts, self.counts)

    def rows_of(self, items: Items) -> Items:
        """The items of a forest, with all rows of their sequences."""
        widths = self.counts[items.rows]
        listed = ranges(self.starts[items.rows], widths)
        ends = np.concatenate([[0], np.cumsum(widths)])
        first = ends[items.first_row]
        last_rows = self.starts + self.counts - 1
        return items._replace(
            rows=listed,
            first_row=first,
            row_count=ends[items.first_row + items.row_count] - first,
            tail_row=np.where(items.tail_row < 0, -1, last_rows[items.tail_row]),
        )

    def of_sequences(self, values: Ints) -> Ints:
        """`[rows]`: the value of each row's sequence."""
        return np.repeat(values, self.counts)

    def sights(self, chunks: Ints, window: int | None) -> npt.NDArray[np.int64]:
        """`[rows, 7]`: what the native kernel needs to know about rows that do not read all tokens (`Sight` in
        attention.h). `chunks` `[b]`: number of chunks of each sequence. `window`: tokens that a row reads, its own
        included; None: all."""
        columns = self.of_sequences(chunks - 1), np.full(self.total, EVERYTHING), self.of_sequences(self.counts)
        made = np.column_stack([*columns, self.hidden.view(np.int64)])
        if window is not None:
            made[:, 1] = window + self.behind
        return made


@lru_cache(maxsize=512)
def _hidden(count: int, parents: tuple[int, ...] | None) -> npt.NDArray[np.uint64]:
    """`QueryRows.hidden` of one sequence."""
    bits = np.zeros((count, MOST_ROWS), np.uint8)
    bits[:, :count] = ~seen_in_draft(count, parents)[:, ::-1]
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def seen_in_draft(count: int, parents: Sequence[int] | None) -> npt.NDArray[np.bool_]:
    """`[count, count]`: whether row i reads token j of a draft: itself and its ancestors. `parents`: see
    `QueryRows`."""
    if parents is None:
        return np.tri(count, dtype=np.bool_)
    seen = np.eye(count, dtype=np.bool_)
    for token, parent in enumerate(parents):
        if parent >= 0:
            seen[token] |= seen[parent]
    return seen


def chunks_of_rows(plan: Plan) -> Ints:
    """`[b]`, by row: number of chunks of each sequence of a plan."""
    steps = np.zeros(len(plan.order) + 1, np.int64)
    np.add.at(steps, plan.begins, plan.lengths)
    np.subtract.at(steps, plan.ends, plan.lengths)
    chunks = np.empty(len(plan.order), np.int64)
    chunks[plan.order] = np.cumsum(steps[:-1])
    return chunks
