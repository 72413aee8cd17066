"""Decides which chunks window heads hold. They lose a chunk of the tree when it lies before the windows of all its
sequences."""

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
    """Says which tokens each KV head keeps. A full head keeps all tokens. A window head keeps the sinks (a few first
    tokens) and the window (the last tokens).

    In RazorAttention (arXiv 2407.15891), the full heads are the model's retrieval heads. Sinks and windows consist of
    whole chunks. If `window` is a multiple of chunk_size, a window has `window` to `window + chunk_size - 1` tokens
    before the position of the query.
    """

    full: tuple[tuple[bool, ...], ...]
    """`[layer][KV head]`: whether this head is full."""
    window: int | None = None
    """Number of tokens in the window. With None, a window has a fifth of the sequence, but at least 4000 tokens (as in
    the paper)."""
    sinks: int = 4
    """Number of first tokens of the sequence that each window head keeps."""
    compensation: Compensation = "weighted"
    """What replaces the tokens that a head lost. none: nothing. mean: one token whose K and V are the means of the lost
    ones. weighted: like mean, and the logarithm of the number of lost tokens is added to its score (as in the
    paper)."""
    compress: Compress = "own"
    """own: window heads lose only chunks that one sequence covers, and later sequences do not share these chunks. all:
    window heads also lose chunks of shared prefixes, so a later sequence with this prefix finds only what is left."""
    exact: bool = False
    """Whether window heads read exactly `window` tokens, the query's own included: layers with sliding windows. They
    then have no sinks and no compensation, and `compress` is all. Later sequences share only what they read in full."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window holds at least 1 token, not {self.window}")
        if self.sinks < 0:
            raise ValueError(f"sinks cannot be negative: {self.sinks}")
        if self.exact and (not self.window or self.sinks or (self.compensation, self.compress) != ("none", "all")):
            raise ValueError("exact windows need window, sinks=0, compensation='none' and compress='all'")

    @property
    def exact_window(self) -> int | None:
        """Number of tokens that window heads read, if windows are exact."""
        return self.window if self.exact else None

    @classmethod
    def of_layers(cls, windowed: Sequence[bool], kv_heads: int, window: int) -> HeadPolicy:
        """Exact windows in the layers for which `windowed` is true. The other layers keep all tokens."""
        full = tuple((not one,) * kv_heads for one in windowed)
        return cls(full, window, 0, "none", "all", exact=True)

    def heads(self, layer: int, full: bool) -> list[int]:
        """Indices of a layer's full KV heads if `full` is true, else indices of the layer's window heads."""
        return [head for head, is_full in enumerate(self.full[layer]) if is_full == full]

    def end_of_dropped(self, positions: Ints, chunk_size: int) -> Ints:
        """`[n]`: for a query at each of these positions, index in the sequence of the first chunk of the window. The
        query does not see the chunks between the sinks and this chunk.

        With exact windows, these are the chunks that all queries from the beginning of the position's chunk on read,
        because a step that failed computes the last chunk of a sequence again."""
        windows = np.maximum(_LEAST_WINDOW, -(-(positions + 1) // 5)) if self.window is None else self.window
        return positions // chunk_size + windows // -chunk_size

    def lost(self, tokens: int, chunk_size: int, shared: int = 0) -> slice:
        """Positions of the tokens that a window head no longer sees after `tokens` tokens.

        `shared`: number of leading tokens that other sequences also cover. With `compress="own"` these are never lost.
        """
        begin = self.sink_chunks(chunk_size) * chunk_size
        if self.compress == "own":
            begin = max(begin, shared // chunk_size * chunk_size)
        end = int(self.end_of_dropped(np.array([tokens - 1]), chunk_size)[0]) * chunk_size
        return slice(begin, max(begin, end))

    def sink_chunks(self, chunk_size: int) -> int:
        """Number of chunks that hold the sinks."""
        return -(-self.sinks // chunk_size)


@dataclass(frozen=True)
class WindowPlan:
    """A plan without the chunks that window heads lost, and the entry that replaces these chunks in each row."""

    plan: Plan
    entries: Ints
    """`[b]`, by row: index of the entry that sums the chunks that the row lost; NOWHERE if the row lost none."""
    tokens: Ints
    """`[b]`, by row: number of tokens that the row lost."""


class WindowedPool(ChunkPool):
    """A pool of chunks for full heads. Each chunk also has a place in the store of the window heads until these lose
    the chunk.

    A lost chunk has an entry instead: the sums of K and V of this chunk and of the lost chunks before it on the path.
    So sequences with a common path have common entries, and a fork needs no new entries.
    """

    def __init__(
        self,
        policy: HeadPolicy,
        limit: int | None,
        chunk_size: int,
        make_room: Callable[[int], None],
        make_windows: Callable[[int], None],
        make_entries: Callable[[int], None],
        saved: float,
    ) -> None:
        """`limit`: number of chunks that fit while window heads have lost none. `saved`: by how much the limit rises
        with each lost chunk, a fraction of a chunk, at most 1. `make_room` makes room for a number of chunks,
        `make_windows` for a number of places, `make_entries` for a number of entries."""
        super().__init__(limit, make_room)
        self.places: Ints = np.empty(0, np.int64)
        """`[chunk]`: the chunk's place in the store of the window heads; NOWHERE if they lost the chunk."""
        self.entries: Ints = np.empty(0, np.int64)
        """`[chunk]`: the chunk's entry if window heads lost the chunk, else NOWHERE."""
        self.windows = ChunkPool(None, make_windows)
        self.sums = ChunkPool(None, make_entries)
        self.changes = 0
        """Number of chunks that window heads have lost so far."""
        self._policy, self._whole, self._saved = policy, limit, saved
        self._window_chunks = -(-(policy.window or 0) // chunk_size)

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
        exact = self._policy.exact
        if not self.sums.in_use or (self._policy.compress == "all" and not exact):
            return count
        lacking = np.flatnonzero(self.places[chunks[:count]] == NOWHERE)
        if not exact:
            return int(lacking[0]) if len(lacking) else count
        # What follows a prefix reads the window before its end, or all of a shorter prefix.
        stops, starts = np.append(lacking, count), np.append(-1 - self._window_chunks, lacking)
        return int(stops[stops - starts > self._window_chunks][-1])

    def drop(self, chunk: int) -> int:
        """Let window heads lose a chunk. Returns the index of its entry, to which the caller writes the sums."""
        (entry,) = self.sums.allocate(1)
        self.windows.release([int(self.places[chunk])])
        self.places[chunk], self.entries[chunk] = NOWHERE, entry
        self.changes += 1
        self._set_limit()
        return entry

    def to_drop(self, plan: Plan, ends: Ints) -> list[tuple[int, int]]:
        """Pairs of chunk ids: a chunk that window heads no longer need, and the previous lost chunk on its path. The
        second id is NOWHERE if the path has no earlier lost chunk.

        `ends` `[b]`, by row: index in the sequence of the first chunk of the row's window. The lost chunks of a path
        are consecutive, and new ones follow at their end. They begin after the sinks. With `own`, they also begin after
        the chunks that other sequences covered at that time. Exact windows lose all chunks that no row needs, also
        behind those that one needs.
        """
        if self._policy.exact:
            return [(chunk, NOWHERE) for chunk in self._outside(plan, ends)]
        drops: list[tuple[int, int]] = []
        sinks, own = self._policy.sink_chunks(plan.chunk_size), self._policy.compress == "own"
        needed = ends[plan.order]
        depth, last = np.zeros(len(needed), np.int64), np.full(len(needed), NOWHERE)
        ended = np.zeros(len(needed), np.bool_)  # whether a held chunk ends the run of lost chunks
        begun = np.zeros(len(needed), np.bool_)  # whether the row has lost a chunk
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
                drops.append((chunk, before))
                before = chunk
            last[covering], ended[covering] = before, max(start, stays) < len(chunks)
        return drops

    def _outside(self, plan: Plan, ends: Ints) -> list[int]:
        """The held chunks that lie before the windows of all rows that cover them. `ends`: see `to_drop`."""
        needed, found = ends[plan.order], list[int]()
        columns = plan.begins, plan.ends, plan.starts[:-1], plan.starts[1:], plan.before
        for begin, end, first, stop, before in zip(*(column.tolist() for column in columns), strict=True):
            chunks = plan.chunks[first : min(stop, max(first, first + int(needed[begin:end].min()) - before))]
            found += chunks[self.places[chunks] != NOWHERE].tolist()
        return found

    def of_windows(self, plan: Plan) -> WindowPlan:
        """The plan of the chunks that window heads hold."""
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
        """For each chunk of a plan, whether window heads hold it; and the number of held chunks of each segment."""
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
