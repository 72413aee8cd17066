"""The chunk store: K and V of chunks, in slabs that are added and never moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]


class Slab(NamedTuple):
    """K and V of the chunks `first ..`, each `[chunks, h_kv, c, d]`, contiguous."""

    first: int
    keys: torch.Tensor
    values: torch.Tensor


class Run(NamedTuple):
    """Chunks with consecutive ids in one slab: places `start .. start + chunks` of slab number `slab`.

    `begin` is where they begin in the list of ids that was split.
    """

    slab: int
    start: int
    chunks: int
    begin: int


class ChunkStore:
    """K and V in chunks of `chunk_size` tokens on one device; chunk ids are given by others (`kvcache`).

    Invariant that the kernels rely on: in a chunk that is not full, V is zero beyond the tokens that it holds, so that
    a weight of zero times what lies there is zero and never NaN. K may be anything there: its scores are masked.
    """

    def __init__(
        self, chunk_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.chunk_size = chunk_size
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = torch.device(device)
        self.slabs: list[Slab] = []
        self.capacity = 0
        """Chunks that there is room for."""
        self._firsts: Ints = np.empty(0, np.int64)
        self._bases: Ints = np.empty((2, 0), np.int64)  # addresses of the slabs' K and V, which never move

    @property
    def chunk_bytes(self) -> int:
        """Bytes of K and V of one chunk."""
        return 2 * self.chunk_size * self.kv_heads * self.head_dim * self.dtype.itemsize

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` chunks by one slab of exactly the difference; a smaller capacity changes nothing.

        Raises what the allocator raises, and then nothing has changed.
        """
        missing = capacity - self.capacity
        if missing <= 0:
            return
        shape = (missing, self.kv_heads, self.chunk_size, self.head_dim)
        keys = torch.empty(shape, dtype=self.dtype, device=self.device)
        values = torch.empty(shape, dtype=self.dtype, device=self.device)
        self.slabs.append(Slab(self.capacity, keys, values))
        self._firsts = np.append(self._firsts, self.capacity)
        self._bases = np.append(self._bases, [[keys.data_ptr()], [values.data_ptr()]], axis=1)
        self.capacity = capacity

    def locate(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Slab number and place in the slab of every chunk id. Raises IndexError for ids without room."""
        if len(chunks) and not (chunks.min() >= 0 and chunks.max() < self.capacity):
            raise IndexError(f"the store has room for chunks 0 to {self.capacity - 1}")
        slab = np.searchsorted(self._firsts, chunks, side="right") - 1
        return slab, chunks - self._firsts[slab]

    def addresses(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Addresses of the K and V of chunks, as this store lays them out. Raises IndexError for ids without room."""
        slab, place = self.locate(chunks)
        step = place * (self.chunk_bytes // 2)
        return self._bases[0, slab] + step, self._bases[1, slab] + step

    def runs(self, chunks: Ints) -> Iterator[Run]:
        """Split a list of chunk ids into maximal runs that are consecutive in memory."""
        if len(chunks) == 0:
            return
        slab, place = self.locate(chunks)
        breaks = np.flatnonzero((np.diff(place) != 1) | (np.diff(slab) != 0)) + 1
        begins = np.concatenate([[0], breaks])
        counts = np.diff(np.append(begins, len(chunks)))
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
            yield Run(int(slab[begin]), int(place[begin]), count, begin)

    def fill(self, chunks: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v `[n, h_kv, d]` to the chunks in order; the last may stay partial."""
        c = self.chunk_size
        whole, rest = divmod(k.shape[0], c)
        for run in self.runs(chunks[:whole]):
            tokens = slice(run.begin * c, (run.begin + run.chunks) * c)
            places = slice(run.start, run.start + run.chunks)
            slab = self.slabs[run.slab]
            slab.keys[places].copy_(k[tokens].unflatten(0, (run.chunks, c)).transpose(1, 2))
            slab.values[places].copy_(v[tokens].unflatten(0, (run.chunks, c)).transpose(1, 2))
        if rest:
            keys, values = self._chunk(int(chunks[whole]))
            keys[:, :rest].copy_(k[whole * c :].transpose(0, 1))
            values[:, :rest].copy_(v[whole * c :].transpose(0, 1))
            values[:, rest:].zero_()

    def append(self, chunks: Ints, slots: Ints, new: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k[i], v[i] `[h_kv, d]` into slot slots[i] of chunk chunks[i]; those in `new` held nothing before."""
        for slab, (place,) in self._by_slab(new):
            self.slabs[slab].values.index_fill_(0, self._index(place), 0)
        for slab, (place, slot, row) in self._by_slab(chunks, slots, np.arange(len(chunks))):
            every = len(row) == len(chunks)
            target: tuple[slice | torch.Tensor | int, ...]
            if (np.diff(place) == 1).all() and (slot == slot[0]).all():
                # A batch that advances in step: a strided copy takes half the time of an indexed one.
                target = (slice(int(place[0]), int(place[-1]) + 1), slice(None), int(slot[0]))
            else:
                target = (self._index(place), slice(None), self._index(slot))
            self.slabs[slab].keys[target] = k if every else k[self._index(row)]
            self.slabs[slab].values[target] = v if every else v[self._index(row)]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` slots of a chunk to a chunk that is new."""
        keys, values = self._chunk(target)
        from_keys, from_values = self._chunk(source)
        keys[:, :tokens].copy_(from_keys[:, :tokens])
        values[:, :tokens].copy_(from_values[:, :tokens])
        values[:, tokens:].zero_()

    def cut(self, chunk: int, tokens: int, held: int) -> None:
        """Forget what a chunk that holds `held` tokens holds beyond its first `tokens`."""
        self._chunk(chunk)[1][:, tokens:held].zero_()

    def _chunk(self, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
        slab, place = self.locate(np.array([chunk]))
        found = self.slabs[int(slab[0])]
        return found.keys[int(place[0])], found.values[int(place[0])]

    def _by_slab(self, chunks: Ints, *others: Ints) -> Iterator[tuple[int, tuple[Ints, ...]]]:
        """Slab numbers that occur, each with the places of its chunks and the matching entries of the other arrays."""
        if len(chunks) == 0:
            return
        slabs, places = self.locate(chunks)
        if slabs[0] == slabs[-1] and (slabs == slabs[0]).all():
            yield int(slabs[0]), (places, *others)
            return
        for slab in np.unique(slabs).tolist():
            here = slabs == slab
            yield slab, (places[here], *(other[here] for other in others))

    def _index(self, values: Ints) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)
