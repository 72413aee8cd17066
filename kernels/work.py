"""Work descriptors of a plan: they say which views of the slabs are multiplied with which queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.integers import Ints, ranges
from chunkbench.kernels.items import Items
from chunkbench.kernels.plan import Plan


class Limits(NamedTuple):
    """Largest sizes of pieces. With these sizes, the results of a piece stay in the cache until they are read again."""

    private_chunks: int
    """Maximum number of chunks in a private piece."""
    shared_pairs: int
    """Maximum product of chunks and sequences in a shared piece."""


class SharedPiece:
    """Chunks that all `rows` cover. Each head has one query matrix, which is multiplied with every chunk."""

    entries: slice
    """Indices of the piece's partial results."""

    def __init__(self, store: ChunkStore, chunks: Ints, rows: torch.Tensor) -> None:
        self.rows = rows
        slabs, places = store.locate(chunks)
        locations = [(store.slabs[slab], place) for slab, place in zip(slabs.tolist(), places.tolist(), strict=True)]
        self.keys = [[slab.keys[layer, place] for slab, place in locations] for layer in range(store.layers)]
        self.values = [[slab.values[layer, place] for slab, place in locations] for layer in range(store.layers)]
        """`[layer][chunk]`, each `[h_kv, c, d]`."""


class PrivatePiece:
    """Chunks of one slab, each multiplied with the query of one sequence. Consecutive chunks need no copy."""

    entries: slice
    """Indices of the piece's partial results."""

    def __init__(self, store: ChunkStore, slab: int, places: Ints, rows: Ints, last: Ints) -> None:
        """`places`, `rows` `[m]`: the place in the slab and the row of each chunk. `last`: indices of the chunks that
        may be partial."""
        self.count = len(places)
        self.rows = torch.from_numpy(rows).to(store.device)
        self._store = store
        self._last = last
        self._last_rows = rows[last]
        consecutive = self.count == 1 or bool((np.diff(places) == 1).all())
        self._gathered = None if consecutive else torch.from_numpy(places).to(store.device)
        tensors = store.slabs[slab]
        view = slice(int(places[0]), int(places[0]) + self.count) if consecutive else slice(None)
        self._whole_keys = [keys[view] for keys in tensors.keys.unbind()]
        self._whole_values = [values[view] for values in tensors.values.unbind()]
        self.keys, self.values = self._whole_keys, self._whole_values
        """`[layer]`, each `[m, h_kv, tokens, d]`, or the whole slab if the chunks must be gathered."""
        self.tokens = store.chunk_size
        """Number of tokens that are read from each chunk."""
        self.masked: torch.Tensor | None = None
        """Positions of the chunks to mask; None if no chunk needs a mask."""
        self.mask = torch.empty(0, dtype=torch.bool)
        """`[len(masked), 1, tokens]`: True where the chunk has no token."""

    def refresh(self, last_tokens: Ints) -> None:
        """Update the piece to the current lengths of the sequences. Every plan calls this method, even if the structure
        is the same."""
        if len(self._last) == 0:
            return
        tokens = last_tokens[self._last_rows]
        if len(self._last) == self.count:
            self.tokens = int(tokens.max())
            self.keys = [keys[:, :, : self.tokens] for keys in self._whole_keys]
            self.values = [values[:, :, : self.tokens] for values in self._whole_values]
        short = np.flatnonzero(tokens < self.tokens)
        if len(short) == 0:
            self.masked = None
            return
        mask = np.arange(self.tokens) >= tokens[short, None, None]
        self.masked = torch.from_numpy(self._last[short]).to(self._store.device)
        self.mask = torch.from_numpy(mask).to(self._store.device)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Select the piece's chunks `[m, h_kv, tokens, d]` from `tensor`, which is one layer of `keys` or `values`.
        Copies only if the chunks are scattered."""
        return tensor if self._gathered is None else tensor.index_select(0, self._gathered)


class Work:
    """All pieces of a plan. Partial results are numbered piece by piece. `rows` `[P]` holds the row of each partial
    result."""

    def __init__(self, shared: list[SharedPiece], private: list[PrivatePiece]) -> None:
        self.shared, self.private = shared, private
        pieces: list[SharedPiece | PrivatePiece] = [*shared, *private]
        self.rows = torch.cat([piece.rows for piece in pieces])
        first = 0
        for piece in pieces:
            piece.entries = slice(first, first := first + len(piece.rows))

    def refresh(self, last_tokens: Ints) -> None:
        """Update all pieces to the current numbers of tokens in the last chunks `[b]`."""
        for piece in self.private:
            piece.refresh(last_tokens)


def make_work(plan: Plan, items: Items, store: ChunkStore, limits: Limits) -> Work:
    """Work descriptors of a plan: items of several rows become shared pieces, all others private pieces."""
    shared: list[SharedPiece] = []
    several = items.take(np.flatnonzero(items.row_count > 1))
    for first_chunk, chunk_count, first_row, row_count, _, _ in zip(*several[2:], strict=True):
        rows = torch.from_numpy(items.rows[first_row : first_row + row_count]).to(store.device)
        step = max(1, limits.shared_pairs // row_count)
        for start in range(first_chunk, end := first_chunk + chunk_count, step):
            shared.append(SharedPiece(store, items.chunks[start : min(end, start + step)], rows))
    own = items.take(np.flatnonzero(items.row_count == 1))
    chunks = own.chunks[ranges(own.first_chunk, own.chunk_count)]
    pieces = _split(plan, store, chunks, np.repeat(own.rows[own.first_row], own.chunk_count), limits.private_chunks)
    work = Work(shared, [PrivatePiece(store, *piece) for piece in pieces])
    work.refresh(plan.last_tokens)
    return work


def _split(
    plan: Plan, store: ChunkStore, chunks: Ints, rows: Ints, limit: int
) -> Iterator[tuple[int, Ints, Ints, Ints]]:
    """Split pairs of chunk and row into pieces. A piece has a slab, places, rows, and the positions of the last chunks
    of sequences.

    Last chunks that are adjacent in memory (because one append took them) form separate pieces, which read only as many
    tokens as the fullest of these chunks holds. A single last chunk gets a mask instead, which costs less than another
    piece.
    """
    is_last = chunks == plan.last_chunks[rows]
    last = np.flatnonzero(is_last)
    last = last[np.argsort(chunks[last], kind="stable")]
    adjacent = np.diff(chunks[last]) == 1
    grouped_last = last[np.append(False, adjacent) | np.append(adjacent, False)] if len(last) else last
    other = np.setdiff1d(np.arange(len(chunks)), grouped_last, assume_unique=True)
    # Chunks that several rows read, each by itself, are sorted by row, because runs of chunks are then long.
    repeat = np.bincount(chunks, minlength=1).max() > 1
    other = other[np.lexsort((chunks[other], rows[other])) if repeat else np.argsort(chunks[other], kind="stable")]
    for part in (other, grouped_last):
        scattered: dict[int, list[int]] = {}
        for run in store.runs(chunks[part]):
            members = part[run.begin : run.begin + run.chunks]
            if run.chunks == 1:
                scattered.setdefault(run.slab, []).append(int(members[0]))
                continue
            for start in range(0, run.chunks, limit):
                group = members[start : start + limit]
                places = np.arange(run.start + start, run.start + start + len(group))
                yield run.slab, places, rows[group], np.flatnonzero(is_last[group])
        for slab, singles in scattered.items():
            for start in range(0, len(singles), limit):
                group = np.array(singles[start : start + limit])
                yield slab, store.locate(chunks[group])[1], rows[group], np.flatnonzero(is_last[group])
