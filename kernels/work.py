"""Work descriptors of a plan: which views of the slabs are multiplied with which queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.integers import Ints
from chunkbench.kernels.plan import Plan


class Limits(NamedTuple):
    """Largest sizes of pieces, so that what a piece writes stays in the cache until it is read again."""

    private_chunks: int
    """Chunks in a private piece."""
    shared_pairs: int
    """Chunks times sequences in a shared piece."""


class SharedPiece:
    """Chunks that all `rows` cover. Each head has one query matrix, which is multiplied with every chunk."""

    def __init__(self, store: ChunkStore, chunks: Ints, rows: torch.Tensor, first: int) -> None:
        self.rows = rows
        self.entries = slice(first, first + len(rows))
        slabs, places = store.locate(chunks)
        locations = [(store.slabs[slab], place) for slab, place in zip(slabs.tolist(), places.tolist(), strict=True)]
        self.keys = [[slab.keys[layer, place] for slab, place in locations] for layer in range(store.layers)]
        self.values = [[slab.values[layer, place] for slab, place in locations] for layer in range(store.layers)]
        """`[layer][chunk]`, each `[h_kv, c, d]`."""


class PrivatePiece:
    """Chunks of one slab, each multiplied with the query of one sequence. Consecutive chunks need no copy."""

    def __init__(self, store: ChunkStore, slab: int, places: Ints, rows: Ints, last: Ints, first: int) -> None:
        """`places`, `rows` `[m]`; `last` are the positions, in the piece, of chunks that may be partial."""
        self.count = len(places)
        self.rows = torch.from_numpy(rows).to(store.device)
        self.entries = slice(first, first + self.count)
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
        """Update to the current lengths of the sequences. Every plan calls this, even if the structure is the same."""
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
        """The piece's chunks `[m, h_kv, tokens, d]` of its keys or values `tensor`; a copy only if scattered."""
        return tensor if self._gathered is None else tensor.index_select(0, self._gathered)


@dataclass(frozen=True)
class Work:
    """All pieces of a plan, and the row of each of their partial results, `[P]`."""

    shared: list[SharedPiece]
    private: list[PrivatePiece]
    rows: torch.Tensor

    def refresh(self, last_tokens: Ints) -> None:
        """Update to the current numbers of tokens in the last chunks `[b]`."""
        for piece in self.private:
            piece.refresh(last_tokens)


def make_work(plan: Plan, store: ChunkStore, limits: Limits, chunk_first: bool) -> Work:
    """Work descriptors of a plan.

    With `chunk_first`, segments that several sequences cover become shared pieces, and all others become private pieces
    (two-phase partition). Without it, every sequence has private pieces for all of its chunks.
    """
    shared: list[SharedPiece] = []
    rows: list[Ints] = []
    chunks_of: list[Ints] = []
    rows_of: list[Ints] = []
    first = 0
    for segment in plan.segments:
        covering = plan.order[segment.begin : segment.end]
        if chunk_first and len(covering) > 1:
            index = torch.from_numpy(covering).to(store.device)
            step = max(1, limits.shared_pairs // len(covering))
            for start in range(0, len(segment.chunks), step):
                shared.append(SharedPiece(store, segment.chunks[start : start + step], index, first))
                rows.append(covering)
                first += len(covering)
        else:
            chunks_of.append(np.tile(segment.chunks, len(covering)))
            rows_of.append(np.repeat(covering, len(segment.chunks)))
    private: list[PrivatePiece] = []
    if chunks_of:
        chunks, owners = np.concatenate(chunks_of), np.concatenate(rows_of)
        for slab, places, piece_rows, last in _split(plan, store, chunks, owners, limits.private_chunks, chunk_first):
            private.append(PrivatePiece(store, slab, places, piece_rows, last, first))
            rows.append(piece_rows)
            first += len(piece_rows)
    index = torch.from_numpy(np.concatenate(rows) if rows else np.empty(0, np.int64)).to(store.device)
    work = Work(shared, private, index)
    work.refresh(plan.last_tokens)
    return work


def _split(
    plan: Plan, store: ChunkStore, chunks: Ints, rows: Ints, limit: int, mix_rows: bool
) -> Iterator[tuple[int, Ints, Ints, Ints]]:
    """Split pairs of chunk and row into pieces: slab, places, rows and the positions of sequences' last chunks.

    Last chunks that are adjacent in memory (one append took them) form pieces of their own, which read only as many
    tokens as the fullest of them holds. A single last chunk gets a mask instead, which costs less than another piece.
    """
    is_last = chunks == plan.last_chunks[rows]
    last = np.flatnonzero(is_last)
    last = last[np.argsort(chunks[last], kind="stable")]
    adjacent = np.diff(chunks[last]) == 1
    grouped_last = last[np.append(False, adjacent) | np.append(adjacent, False)] if len(last) else last
    other = np.setdiff1d(np.arange(len(chunks)), grouped_last, assume_unique=True)
    other = other[np.argsort(chunks[other], kind="stable") if mix_rows else np.lexsort((chunks[other], rows[other]))]
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
