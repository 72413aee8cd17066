"""Which chunks window heads hold: those of a tree, less the ones that every sequence has left behind its window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from chunkbench.attention.pool import ChunkPool
from chunkbench.kernels.integers import NOWHERE, Ints
from chunkbench.kernels.plan import Plan

if TYPE_CHECKING:
    from chunkbench.kernels.compensation import Compensation

Compress = Literal["own", "all"]
_LEAST_WINDOW = 4000


@dataclass(frozen=True)
class HeadPolicy:
    """What each KV head keeps: a full head everything, a window head a few sinks and the last tokens.

    RazorAttention (arXiv 2407.15891): the full heads are the model's retrieval heads. Sinks and windows are whole
    chunks: a query also sees `window` to `window + chunk_size - 1` tokens before its own.
    """

    full: tuple[tuple[bool, ...], ...]
    """`[layer][KV head]`"""
    window: int | None = None
    """Tokens; None: a fifth of the sequence, at least 4000 (the paper's)."""
    sinks: int = 4
    """First tokens of the sequence."""
    compensation: Compensation = "weighted"
    """What stands for the tokens that a head lost: nothing; a token of their means of K and V; or this token with the
    logarithm of their number added to its score (the paper's)."""
    compress: Compress = "own"
    """own: only what one sequence alone covers; later sequences share no chunk that window heads lost. all: shared
    prefixes, too; a later sequence with this prefix then finds in its window heads what was left."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window holds at least 1 token, not {self.window}")
        if self.sinks < 0:
            raise ValueError(f"sinks cannot be negative: {self.sinks}")

    def heads(self, layer: int, full: bool) -> list[int]:
        """The KV heads of a layer that are full, or the others."""
        return [head for head, is_full in enumerate(self.full[layer]) if is_full == full]

    def end_of_dropped(self, positions: Ints, chunk_size: int) -> Ints:
        """Number of the first chunk that the query at each position `[n]` still sees, beside the sinks."""
        windows = np.maximum(_LEAST_WINDOW, -(-(positions + 1) // 5)) if self.window is None else self.window
        return positions // chunk_size + windows // -chunk_size

    def lost(self, tokens: int, chunk_size: int, shared: int = 0) -> slice:
        """Which of so many tokens the query of the last one does not see in a window head. `shared`: leading tokens
        that other sequences cover, too, and that `own` leaves alone."""
        begin = self.sink_chunks(chunk_size) * chunk_size
        if self.compress == "own":
            begin = max(begin, shared // chunk_size * chunk_size)
        end = int(self.end_of_dropped(np.array([tokens - 1]), chunk_size)[0]) * chunk_size
        return slice(begin, max(begin, end))

    def sink_chunks(self, chunk_size: int) -> int:
        """Chunks that hold the sinks."""
        return -(-self.sinks // chunk_size)


@dataclass(frozen=True)
class WindowPlan:
    """A plan without the chunks that window heads lack, and what stands for these in each row."""

    plan: Plan
    entries: Ints
    """`[b]` by row: the sums of all chunks that the row lacks; NOWHERE if it lacks none."""
    tokens: Ints
    """`[b]` how many tokens these are."""


class WindowedPool(ChunkPool):
    """A pool of the chunks of full heads. A chunk also has a place for its window heads, until they lose it.

    In place of what they lose there is an entry: the sums of K and V of this chunk and of those before it on the path.
    So sequences with a common path have common entries, and a fork makes none.
    """

    def __init__(
        self,
        policy: HeadPolicy,
        limit: int | None,
        make_room: Callable[[int], None],
        make_windows: Callable[[int], None],
        make_entries: Callable[[int], None],
        saved: float,
    ) -> None:
        """`limit`: chunks that fit while window heads lack none; a chunk that they lack leaves room for `saved` more
        (below 1). The functions make room for so many chunks, places and entries."""
        super().__init__(limit, make_room)
        self.places: Ints = np.empty(0, np.int64)
        """`[chunk]` where window heads hold it; NOWHERE if they do not."""
        self.entries: Ints = np.empty(0, np.int64)
        """`[chunk]` its entry, if they do not."""
        self.windows = ChunkPool(None, make_windows)
        self.sums = ChunkPool(None, make_entries)
        self.changes = 0
        """How often window heads lost chunks."""
        self._policy, self._whole, self._saved = policy, limit, saved

    def reserve(self, chunks: int) -> None:
        super().reserve(chunks)
        self.windows.reserve(chunks)

    def allocate(self, count: int) -> list[int]:
        ids = super().allocate(count)
        self.places[ids] = self.windows.allocate(count)
        self.entries[ids] = NOWHERE
        return ids

    def release(self, ids: Iterable[int]) -> None:
        released = list(ids)
        super().release(released)
        places, entries = self.places[released], self.entries[released]
        self.windows.release(places[places != NOWHERE].tolist())
        self.sums.release(entries[entries != NOWHERE].tolist())
        self._set_limit()

    def shareable(self, chunks: Sequence[int], count: int) -> int:
        if self._policy.compress == "all" or not self.sums.in_use:
            return count
        lacking = np.flatnonzero(self.places[chunks[:count]] == NOWHERE)
        return int(lacking[0]) if len(lacking) else count

    def drop(self, chunk: int) -> int:
        """Window heads lose a chunk. Returns its entry, whose sums are to be written."""
        (entry,) = self.sums.allocate(1)
        self.windows.release([int(self.places[chunk])])
        self.places[chunk], self.entries[chunk] = NOWHERE, entry
        self.changes += 1
        self._set_limit()
        return entry

    def to_drop(self, plan: Plan, ends: Ints) -> list[tuple[int, int]]:
        """Chunks that window heads no longer need, each with the one before it on the path that they lack, or NOWHERE.

        `ends` `[b]` by row: the number of the first chunk behind the sinks that the row still needs. What a path lacks
        is one run of chunks, which grows at its end only: it begins after the sinks, with `own` after what other
        sequences covered when it began.
        """
        found: list[tuple[int, int]] = []
        sinks, own = self._policy.sink_chunks(plan.chunk_size), self._policy.compress == "own"
        needed = ends[plan.order]
        depth, last = np.zeros(len(needed), np.int64), np.full(len(needed), NOWHERE)
        ended = np.zeros(len(needed), np.bool_)  # whether a chunk follows the run, or is where it would begin
        begun = np.zeros(len(needed), np.bool_)  # whether the row lacks a chunk
        for segment in np.flatnonzero(self._held(plan)[1] < np.diff(plan.starts)).tolist():
            begun[plan.begins[segment] : plan.ends[segment]] = True
        bounds = zip(plan.begins.tolist(), plan.ends.tolist(), plan.starts.tolist(), strict=False)
        for (begin, end, first), stop in zip(bounds, plan.starts[1:].tolist(), strict=True):
            covering, chunks = slice(begin, end), plan.chunks[first:stop]
            number, before = int(depth[begin]), int(last[begin])
            depth[covering] += len(chunks)
            lacking = np.flatnonzero(self.places[chunks] == NOWHERE)
            if len(lacking):
                start, before = int(lacking[-1]) + 1, int(chunks[lacking[-1]])
            elif ended[begin] or (before == NOWHERE and (begun[covering].any() or (own and end - begin > 1))):
                continue
            else:
                start = 0 if before != NOWHERE else min(max(0, sinks - number), len(chunks))
            stays = start if own and end - begin > 1 else int(needed[covering].min()) - number
            for chunk in chunks[start : max(0, stays)].tolist():
                found.append((chunk, before))
                before = chunk
            last[covering], ended[covering] = before, max(start, stays) < len(chunks)
        return found

    def of_windows(self, plan: Plan) -> WindowPlan:
        """The plan that window heads follow."""
        places, (there, lengths) = self.places[plan.chunks], self._held(plan)
        rows = len(plan.order)
        entries, tokens = np.full(rows, NOWHERE), np.zeros(rows, np.int64)
        for segment in np.flatnonzero(lengths < np.diff(plan.starts)).tolist():  # parents before children
            covering = plan.order[plan.begins[segment] : plan.ends[segment]]
            chunks = plan.chunks[plan.starts[segment] : plan.starts[segment + 1]]
            lacking = chunks[~there[plan.starts[segment] : plan.starts[segment + 1]]]
            entries[covering] = self.entries[lacking[-1]]
            tokens[covering] += len(lacking) * plan.chunk_size
        kept = lengths > 0
        seen = replace(
            plan,
            chunks=places[there],
            starts=np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int64),
            begins=plan.begins[kept],
            ends=plan.ends[kept],
            chunks_by_slot=self.places[plan.chunks_by_slot],
        )
        return WindowPlan(seen, entries, tokens)

    def _held(self, plan: Plan) -> tuple[npt.NDArray[np.bool_], Ints]:
        """Which chunks of a plan window heads hold, and how many of each segment."""
        there = self.places[plan.chunks] != NOWHERE
        counts = np.add.reduceat(there.astype(np.int64), plan.starts[:-1]) if len(there) else np.diff(plan.starts)
        return there, counts

    def _grow(self, capacity: int) -> None:
        super()._grow(capacity)
        more = np.full(capacity - len(self.places), NOWHERE)
        self.places, self.entries = np.append(self.places, more), np.append(self.entries, more)

    def _set_limit(self) -> None:
        if self._whole is not None:
            self.limit = self._whole + int(self.sums.in_use * self._saved)
