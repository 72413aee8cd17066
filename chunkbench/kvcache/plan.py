"""The plan: which chunks exist, and which sequences each of them serves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from chunkbench.kvcache.integers import Ints


class Segment(NamedTuple):
    """A maximal run of chunks, one after the other on a path, that the same sequences cover."""

    chunks: Ints
    """Chunk ids `[m]`, in token order."""
    begin: int
    end: int
    """The sequences `[begin, end)` in depth-first order cover the segment."""


class Growth(NamedTuple):
    """How a plan came from another: these rows, each named once, have begun a new last chunk."""

    of: int
    """`version` of the plan before."""
    rows: Ints
    chunks: Ints


_versions = count()


@dataclass(frozen=True)
class Plan:
    """Segments in depth-first order (a segment comes before those below it), and how sequences map to rows.

    The structure is fixed; the lengths are not. Only the last chunk of a sequence can be partial, and a partial chunk
    belongs to one sequence alone. So all lengths follow from `last_tokens`, which reads the tree's own array: appending
    inside a chunk leaves the plan valid. Any change of structure (a chunk more or less, a sequence more or less) makes
    the tree hand out another plan.
    """

    chunk_size: int
    chunks: Ints
    """Chunk ids of all segments, one segment's after the other's."""
    starts: Ints
    """`[segments + 1]`: where in `chunks` each segment starts, and where the last ends."""
    begins: Ints
    ends: Ints
    """`[segments]`: the sequences `[begin, end)` in depth-first order cover the segment."""
    order: Ints
    """`[b]`: row (place in order of addition) of the sequence at each depth-first position."""
    chunks_by_slot: Ints
    tokens_by_slot: Ints
    """The tree's own: id of each sequence's last chunk, and tokens in that."""
    slots: Ints | slice
    """`[b]`: the slot of each row."""
    growth: Growth | None = None
    """Where the plan is another one's with chunks added to sequences' own runs."""
    version: int = field(default_factory=_versions.__next__)
    """No two plans have the same."""

    def grown(self, rows: Ints, chunks: Ints) -> Plan | None:
        """The plan after these rows have begun new last chunks behind runs of chunks of their own.

        A row that is named several times has begun several. None where one of them had no such run: the forest then
        has a segment more. This takes a fraction of the time that a walk over the forest takes, and at almost every
        step of a busy server some sequence begins a chunk.
        """
        segments = self._own_segments[rows]
        if (segments < 0).any():
            return None
        longer = np.bincount(segments + 1, minlength=len(self.starts))
        grown = np.insert(self.chunks, self.starts[segments + 1], chunks)
        once = len(np.unique(rows)) == len(rows)
        growth = Growth(self.version, rows, chunks) if once else None
        starts = self.starts + np.cumsum(longer)
        plan = replace(self, chunks=grown, starts=starts, growth=growth, version=next(_versions))
        plan.__dict__["_own_segments"] = self._own_segments  # the same, and known
        return plan

    @property
    def last_chunks(self) -> Ints:
        """`[b]`, by row: id of the sequence's last chunk."""
        return self.chunks_by_slot[self.slots]

    @property
    def last_tokens(self) -> Ints:
        """`[b]`, by row: tokens in that chunk, 1..chunk_size, as they are now."""
        return self.tokens_by_slot[self.slots]

    @cached_property
    def _own_segments(self) -> Ints:
        """`[b]`, by row: the segment that only this sequence covers, or -1."""
        single = np.flatnonzero(self.ends - self.begins == 1)
        own = np.full(len(self.order), -1)
        own[self.order[self.begins[single]]] = single
        return own

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments one by one."""
        starts, begins, ends = self.starts.tolist(), self.begins.tolist(), self.ends.tolist()
        ranges = zip(pairwise(starts), begins, ends, strict=True)
        return tuple(Segment(self.chunks[start:stop], begin, end) for (start, stop), begin, end in ranges)

    def tokens(self, segment: Segment) -> int:
        """Tokens that the segment holds now."""
        whole = len(segment.chunks) * self.chunk_size
        if segment.end - segment.begin > 1:
            return whole
        row = self.order[segment.begin]
        if self.last_chunks[row] != segment.chunks[-1]:
            return whole
        return whole - self.chunk_size + int(self.last_tokens[row])
