"""The chunk store: K and V of chunks, in slabs that are added and never moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from chunkbench.kvcache.changes import Append
from chunkbench.kvcache.integers import Ints


class Slab(NamedTuple):
    """K and V of the chunks `first ..`, each `[layers, chunks, h_kv, c, d]`."""

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

    A chunk holds its tokens' K and V of all layers, so that one tree and one plan serve a whole model. In memory the
    chunks of a layer lie together.

    Invariant that the kernels rely on: in a chunk that is not full, V is zero beyond the tokens that it holds, so that
    a weight of zero times what lies there is zero and never NaN. K may be anything there: its scores are masked.
    """

    def __init__(
        self,
        chunk_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        layers: int = 1,
    ) -> None:
        self.chunk_size = chunk_size
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = torch.device(device)
        self.layers = layers
        self.slabs: list[Slab] = []
        self.capacity = 0
        """Chunks that there is room for."""
        self._firsts: Ints = np.empty(0, np.int64)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of K and V of one chunk, all layers."""
        return 2 * self.layers * self.chunk_size * self.kv_heads * self.head_dim * self.dtype.itemsize

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` chunks by one slab of exactly the difference; a smaller capacity changes nothing.

        Raises what the allocator raises, and then nothing has changed.
        """
        missing = capacity - self.capacity
        if missing <= 0:
            return
        keys, values = self._allocate(missing), self._allocate(missing)
        self.slabs.append(Slab(self.capacity, keys, values))
        self._firsts = np.append(self._firsts, self.capacity)
        self.capacity = capacity

    def locate(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Slab number and place in the slab of every chunk id. Raises IndexError for ids without room."""
        if len(chunks) and not (chunks.min() >= 0 and chunks.max() < self.capacity):
            raise IndexError(f"the store has room for chunks 0 to {self.capacity - 1}")
        slab = np.searchsorted(self._firsts, chunks, side="right") - 1
        return slab, chunks - self._firsts[slab]

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

    def fill(self, chunks: Ints, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        """Write k and v `[n, h_kv, d]` of a layer to the chunks in order; the last may stay partial."""
        c = self.chunk_size
        whole, rest = divmod(k.shape[0], c)
        for run in self.runs(chunks[:whole]):
            tokens = slice(run.begin * c, (run.begin + run.chunks) * c)
            places = slice(run.start, run.start + run.chunks)
            slab = self.slabs[run.slab]
            slab.keys[layer, places].copy_(k[tokens].unflatten(0, (run.chunks, c)).transpose(1, 2))
            slab.values[layer, places].copy_(v[tokens].unflatten(0, (run.chunks, c)).transpose(1, 2))
        if rest:
            keys, values = (held[layer] for held in self._chunk(int(chunks[whole])))
            keys[:, :rest].copy_(k[whole * c :].transpose(0, 1))
            values[:, :rest].copy_(v[whole * c :].transpose(0, 1))
            values[:, rest:].zero_()

    def append(self, appended: Append, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        """Write k, v `[n, h_kv, d]` of a layer where the tokens that were appended go."""
        chunks, slots = appended.chunks, appended.slots
        for slab, (place,) in self._by_slab(appended.new):
            self.slabs[slab].values[layer].index_fill_(0, self._index(place), 0)
        for slab, (place, slot, row) in self._by_slab(chunks, slots, np.arange(len(chunks))):
            every = len(row) == len(chunks)
            target: tuple[slice | torch.Tensor | int, ...]
            if (np.diff(place) == 1).all() and (slot == slot[0]).all():
                # A batch that advances in step: a strided copy takes half the time of an indexed one.
                target = (slice(int(place[0]), int(place[-1]) + 1), slice(None), int(slot[0]))
            else:
                target = (self._index(place), slice(None), self._index(slot))
            self.slabs[slab].keys[layer][target] = k if every else k[self._index(row)]
            self.slabs[slab].values[layer][target] = v if every else v[self._index(row)]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` slots of a chunk, all layers, to a chunk that is new."""
        keys, values = self._chunk(target)
        from_keys, from_values = self._chunk(source)
        keys[:, :, :tokens].copy_(from_keys[:, :, :tokens])
        values[:, :, :tokens].copy_(from_values[:, :, :tokens])
        values[:, :, tokens:].zero_()

    def cut(self, chunk: int, tokens: int, held: int) -> None:
        """Forget what a chunk that holds `held` tokens holds beyond its first `tokens`, in all layers."""
        self._chunk(chunk)[1][:, :, tokens:held].zero_()

    def _allocate(self, chunks: int) -> torch.Tensor:
        """Memory `[layers, chunks, h_kv, c, d]` with anything in it."""
        shape = (self.layers, chunks, self.kv_heads, self.chunk_size, self.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _chunk(self, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one chunk `[layers, h_kv, c, d]`."""
        slab, place = self.locate(np.array([chunk]))
        found = self.slabs[int(slab[0])]
        return found.keys[:, int(place[0])], found.values[:, int(place[0])]

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


class AddressedStore(ChunkStore):
    """A chunk store for kernels that reach chunks by address. In memory the layers of a chunk lie together.

    So a chunk's address in one layer follows from that in another by the same shift for all chunks, old and new.
    """

    def __init__(
        self,
        chunk_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        layers: int = 1,
    ) -> None:
        super().__init__(chunk_size, kv_heads, head_dim, dtype, device, layers)
        self._bases: Ints = np.empty((2, 0), np.int64)  # addresses of the slabs' K and V, which never move

    @property
    def layer_bytes(self) -> int:
        """From the K of a chunk in one layer to its K in the next; the same for V."""
        return self.chunk_bytes // (2 * self.layers)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` chunks, as `ChunkStore.grow` does."""
        super().grow(capacity)
        added = [[slab.keys.data_ptr(), slab.values.data_ptr()] for slab in self.slabs[self._bases.shape[1] :]]
        if added:
            self._bases = np.append(self._bases, np.transpose(added), axis=1)

    def addresses(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Addresses of the K and V of chunks in layer 0. Raises IndexError for ids without room."""
        slab, place = self.locate(chunks)
        step = place * (self.chunk_bytes // 2)
        return self._bases[0, slab] + step, self._bases[1, slab] + step

    def _allocate(self, chunks: int) -> torch.Tensor:
        shape = (chunks, self.layers, self.kv_heads, self.chunk_size, self.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device).transpose(0, 1)
