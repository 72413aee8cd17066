"""The chunk store: K and V of chunks, in slabs that never move. A store grows by adding slabs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from chunkbench.kernels.changes import Append
from chunkbench.kernels.eight_bits import narrow, widened
from chunkbench.kernels.integers import Ints
from chunkbench.kv_dtype import KvDtype, width


class Slab(NamedTuple):
    """K and V of the chunks with ids from `first` on, each `[layers, chunks, h_kv, c, d]`. In 8 bits the last
    dimension is that of `eight_bits.narrow`."""

    first: int
    keys: torch.Tensor
    values: torch.Tensor


class ChunkRun(NamedTuple):
    """Chunks with consecutive ids in one slab. They have the places `start` to `start + chunks - 1` of slab number
    `slab`.

    `begin`: index of the run's first chunk in the list that `ChunkStore.runs` split.
    """

    slab: int
    start: int
    chunks: int
    begin: int


class ChunkStore:
    """K and V in chunks of `chunk_size` tokens on one device; `chunkbench.attention` assigns the chunk ids.

    A chunk holds its tokens' K and V of all layers, so one tree and one plan serve a whole model. In a slab all chunks
    of a layer are contiguous.

    The kernels rely on an invariant: in a partial chunk, V is zero in the free token slots. So a weight of zero times
    such a V is zero and never NaN. In these slots K may hold any values, because the kernels mask their scores.
    """

    def __init__(
        self,
        chunk_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        layers: int = 1,
        kv_dtype: KvDtype = "same",
        value_dim: int | None = None,
    ) -> None:
        """`value_dim`: dimension of V; default: that of K. 0: V is a part of K, as in latents."""
        self.chunk_size = chunk_size
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.dtype = dtype
        self.device = torch.device(device)
        self.layers = layers
        self.kv_dtype: KvDtype = kv_dtype
        self.slabs: list[Slab] = []
        self.capacity = 0
        """Number of chunks for which there is room."""
        self._firsts: Ints = np.empty(0, np.int64)
        self._bases: Ints = np.empty((2, 0), np.int64)  # addresses of the K and V of each slab; slabs never move

    @property
    def chunk_bytes(self) -> int:
        """Bytes of K and V of one chunk, all layers."""
        return sum(self._strides)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` chunks: add one slab for the missing chunks. A smaller capacity changes nothing.

        Raises the allocator's error. The store is then unchanged.
        """
        missing = capacity - self.capacity
        if missing <= 0:
            return
        slab = Slab(self.capacity, *self._allocate(missing))
        self.slabs.append(slab)
        self._firsts = np.append(self._firsts, slab.first)
        self._bases = np.column_stack([self._bases, [slab.keys.data_ptr(), slab.values.data_ptr()]])
        self.capacity = capacity

    def touch(self) -> None:
        """Fill all chunks with zeros. The operating system then provides all of their memory now, and not at its first
        use."""
        for slab in self.slabs:
            slab.keys.zero_()
            slab.values.zero_()

    def locate(self, chunks: Ints) -> tuple[Ints, Ints]:
        """For each chunk id, the number of its slab and its place in this slab. Raises IndexError for an id beyond the
        capacity."""
        if len(chunks) and not (chunks.min() >= 0 and chunks.max() < self.capacity):
            raise IndexError(f"the store has room for chunks 0 to {self.capacity - 1}")
        slab = np.searchsorted(self._firsts, chunks, side="right") - 1
        return slab, chunks - self._firsts[slab]

    def runs(self, chunks: Ints) -> Iterator[ChunkRun]:
        """Split a list of chunk ids into the longest possible runs of chunks that are consecutive in memory."""
        if len(chunks) == 0:
            return
        slab, place = self.locate(chunks)
        breaks = np.flatnonzero((np.diff(place) != 1) | (np.diff(slab) != 0)) + 1
        begins = np.concatenate([[0], breaks])
        counts = np.diff(np.append(begins, len(chunks)))
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
            yield ChunkRun(int(slab[begin]), int(place[begin]), count, begin)

    def fill(self, chunks: Ints, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        """Write k and v `[n, h_kv, d]` of a layer to the chunks in order. The last chunk may stay partial."""
        k, v = narrow(k, self.kv_dtype), narrow(v, self.kv_dtype)
        c = self.chunk_size
        full, tail = divmod(k.shape[0], c)
        for run in self.runs(chunks[:full]):
            tokens = slice(run.begin * c, (run.begin + run.chunks) * c)
            places = slice(run.start, run.start + run.chunks)
            slab = self.slabs[run.slab]
            slab.keys[layer, places].copy_(k[tokens].unflatten(0, (run.chunks, c)).transpose(1, 2))
            slab.values[layer, places].copy_(v[tokens].unflatten(0, (run.chunks, c)).transpose(1, 2))
        if tail:
            keys, values = (tensor[layer] for tensor in self._chunk(int(chunks[full])))
            keys[:, :tail].copy_(k[full * c :].transpose(0, 1))
            values[:, :tail].copy_(v[full * c :].transpose(0, 1))
            values[:, tail:].zero_()

    def append(self, appended: Append, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        """Write k, v `[n, h_kv, d]` of a layer to the token slots of the appended tokens."""
        k, v = narrow(k, self.kv_dtype), narrow(v, self.kv_dtype)
        chunks, slots = appended.chunks, appended.slots
        for slab, (place,) in self._by_slab(appended.new):
            self.slabs[slab].values[layer].index_fill_(0, self._index(place), 0)
        for slab, (place, slot, row) in self._by_slab(chunks, slots, np.arange(len(chunks))):
            all_rows = len(row) == len(chunks)
            target: tuple[slice | torch.Tensor | int, ...]
            if (np.diff(place) == 1).all() and (slot == slot[0]).all():
                # All sequences are at the same slot: a strided copy takes half the time of an indexed copy.
                target = (slice(int(place[0]), int(place[-1]) + 1), slice(None), int(slot[0]))
            else:
                target = (self._index(place), slice(None), self._index(slot))
            self.slabs[slab].keys[layer][target] = k if all_rows else k[self._index(row)]
            self.slabs[slab].values[layer][target] = v if all_rows else v[self._index(row)]

    def read(self, chunks: Ints, tokens: int, layer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy K and V of the first `tokens` tokens in a list of chunks. Both results are `[h_kv, tokens, d]`, in the
        store's dtype."""
        parts = [(self.slabs[run.slab], slice(run.start, run.start + run.chunks)) for run in self.runs(chunks)]
        keys = torch.cat([slab.keys[layer, places] for slab, places in parts])
        values = torch.cat([slab.values[layer, places] for slab, places in parts])
        in_order = (both.transpose(0, 1).flatten(1, 2)[:, :tokens] for both in (keys, values))
        form = self.kv_dtype, self.head_dim, self.dtype
        return widened(next(in_order), *form), widened(next(in_order), *form)

    def sums(self, chunk: int) -> torch.Tensor:
        """K and V of a full chunk summed over its tokens: `[layers * h_kv, 2, d]`, float32."""
        keys, values = self._chunk(chunk)
        wide = [widened(part, self.kv_dtype, self.head_dim, torch.float32) for part in (keys, values)]
        return torch.stack([part.sum(2).flatten(0, 1) for part in wide], 1)

    def keys(self, chunk: int) -> torch.Tensor:
        """K of a full chunk: `[layers * h_kv, c, d]`, as stored."""
        return self._chunk(chunk)[0].flatten(0, 1)

    def copy(self, source: int, target: int, tokens: int, held: int) -> None:
        """Copy the first `tokens` of the `held` tokens in a chunk, in all layers, to a new chunk.

        The other slots of `target` become free, also if `target` is `source`.
        """
        keys, values = self._chunk(target)
        if target != source:
            from_keys, from_values = self._chunk(source)
            keys[:, :, :tokens].copy_(from_keys[:, :, :tokens])
            values[:, :, :tokens].copy_(from_values[:, :, :tokens])
        values[:, :, tokens:].zero_()

    def _allocate(self, chunks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Uninitialized memory for K and V, each `[layers, chunks, h_kv, c, d]`."""
        return self._memory(self.layers, chunks, self.head_dim), self._memory(self.layers, chunks, self.value_dim)

    def _memory(self, first: int, second: int, dim: int) -> torch.Tensor:
        """Uninitialized memory for vectors of `dim` numbers: `[first, second, h_kv, c, elements]`."""
        shape = (first, second, self.kv_heads, self.chunk_size, width(dim, self.kv_dtype))
        return torch.empty(shape, dtype=self._element, device=self.device)

    @property
    def _strides(self) -> tuple[int, int]:
        """Bytes of the K and of the V of one chunk, all layers."""
        vectors = self.layers * self.chunk_size * self.kv_heads * self._element.itemsize
        return vectors * width(self.head_dim, self.kv_dtype), vectors * width(self.value_dim, self.kv_dtype)

    @property
    def _element(self) -> torch.dtype:
        """The type of an element in memory."""
        return self.dtype if self.kv_dtype == "same" else torch.uint8

    def _chunk(self, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one chunk `[layers, h_kv, c, d]`."""
        slab, place = self.locate(np.array([chunk]))
        home = self.slabs[int(slab[0])]
        return home.keys[:, int(place[0])], home.values[:, int(place[0])]

    def _by_slab(self, chunks: Ints, *other_arrays: Ints) -> Iterator[tuple[int, tuple[Ints, ...]]]:
        """For each slab that occurs: its number, the places of its chunks, and the entries of the other arrays for
        these chunks."""
        if len(chunks) == 0:
            return
        slabs, places = self.locate(chunks)
        if slabs[0] == slabs[-1] and (slabs == slabs[0]).all():
            yield int(slabs[0]), (places, *other_arrays)
            return
        for slab in np.unique(slabs).tolist():
            mask = slabs == slab
            yield slab, (places[mask], *(other[mask] for other in other_arrays))

    def _index(self, values: Ints) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)


class AddressedStore(ChunkStore):
    """A chunk store for kernels that access chunks by address. In memory the layers of a chunk are contiguous.

    The byte offset between two layers of a chunk is the same for all chunks.
    """

    @cached_property
    def layer_bytes(self) -> int:
        """Bytes from a chunk's K in one layer to its K in the next layer."""
        return self._strides[0] // self.layers

    def addresses(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Addresses of the K and V of chunks in layer 0. Raises IndexError for an id beyond the capacity."""
        slab, place = self.locate(chunks)
        keys, values = self._strides
        return self._bases[0, slab] + place * keys, self._bases[1, slab] + place * values

    def _allocate(self, chunks: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = (self._memory(chunks, self.layers, dim) for dim in (self.head_dim, self.value_dim))
        return next(made).transpose(0, 1), next(made).transpose(0, 1)
