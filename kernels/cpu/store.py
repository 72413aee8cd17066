"""K and V in chunks, packed for the native kernels (the layout is described in `src/attention.h`)."""

from __future__ import annotations

import math

import numpy as np
import torch

from chunkbench.kernels.changes import Append
from chunkbench.kernels.chunk_store import AddressedStore
from chunkbench.kernels.cpu import required
from chunkbench.kernels.eight_bits import NUMBERS
from chunkbench.kernels.integers import Ints
from chunkbench.kv_dtype import KvDtype, kv_bytes

PackedShape = tuple[str, int, int, int, str]
"""Name of the dtype, number of KV heads, head dimension, tokens of a chunk, form of K and V: a `KvDtype` or `latent`.
Functions of the native module take these five."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype: float32, float16 or bfloat16."""
    return str(dtype).removeprefix("torch.")


def pack_tokens(
    shape: PackedShape,
    k: torch.Tensor,
    v: torch.Tensor,
    addresses: Ints,
    slots: Ints,
    scales: int = 0,
) -> None:
    """Write k and v `[n, h_kv, d]` to slots `[n]` of the packed chunks at addresses `[n]`. The caller must have checked
    k and v. `scales`: see `NativeDecode.decode_at`. V may have another
    head dimension than K. With the form `latent`, V is a part of K, and v is not read."""
    value_dim = v.shape[2]
    k = k.contiguous()
    v = k if shape[4] == "latent" else v.contiguous()
    slots = np.ascontiguousarray(slots, np.int64)
    required().pack(*shape, k.data_ptr(), v.data_ptr(), addresses, slots, torch.get_num_threads(), scales, value_dim)


class PackedStore(AddressedStore):
    """A chunk store on the CPU that packs K and V when it writes them. Only the native kernels can read it.

    In a chunk the K and the V of a KV head lie side by side. k and v may have n times as many KV heads as the store.
    Then they are written to n consecutive layers.

    Unlike in a `ChunkStore`, V in free token slots may hold any values, because the native kernels do not read it. The
    only exception is bfloat16, whose tokens are stored in pairs. If the last token has no partner, packing sets the
    partner's V to zero.

    `value_dim`: dimension of V; default: that of K. With `latent`, a chunk holds K alone, and V is its first numbers.
    """

    def __init__(
        self,
        chunk_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        layers: int = 1,
        kv_dtype: KvDtype = "same",
        value_dim: int | None = None,
        latent: bool = False,
    ) -> None:
        super().__init__(chunk_size, kv_heads, head_dim, dtype, "cpu", layers, kv_dtype, value_dim)
        self.form: str = "latent" if latent else kv_dtype
        self._native = required()
        self._shape: PackedShape = (dtype_name(dtype), kv_heads, head_dim, chunk_size, self.form)
        self._tails = (b"", np.empty(0, np.int64))  # chunk ids of the last append, and their addresses

    @property
    def chunk_bytes(self) -> int:
        return self.layers * self.kv_heads * self._head_bytes

    @property
    def _head_bytes(self) -> int:
        """Bytes of K and V of a head in a chunk."""
        if self._whole:
            return self.chunk_size * kv_bytes(self.head_dim, self.dtype.itemsize, self.kv_dtype)
        numbers = self.head_dim + (0 if self.form == "latent" else self.value_dim)
        return self.chunk_size * numbers * self.dtype.itemsize

    @property
    def _whole(self) -> bool:
        """Whether a head has as many numbers of K as of V."""
        return self.form != "latent" and self.value_dim == self.head_dim

    def chunk_addresses(self, chunks: Ints) -> Ints:
        """For each chunk, the address of the K of its first head in layer 0. Raises IndexError for an id beyond the
        capacity."""
        return self.addresses(chunks)[0]

    def fill(self, chunks: Ints, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        tokens = np.arange(k.shape[0])
        self._pack(self.chunk_addresses(chunks[tokens // self.chunk_size]), tokens % self.chunk_size, k, v, layer)

    def append(self, appended: Append, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        ids = appended.chunks.tobytes()
        if ids != self._tails[0]:  # most steps append to the same chunks as the step before
            self._tails = (ids, self.chunk_addresses(appended.chunks))
        self._pack(self._tails[1], appended.slots, k, v, layer)

    def read(self, chunks: Ints, tokens: int, layer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises NotImplementedError: only the native kernels can read packed chunks."""
        raise NotImplementedError("packed chunks cannot be read back")

    def sums(self, chunk: int) -> torch.Tensor:
        c, d = self.chunk_size, self.head_dim
        step = 2 if self.dtype == torch.bfloat16 and self.kv_dtype == "same" else 1
        keys, values = self._stored(chunk)
        of_keys = keys.view(-1, c // 16, d // step, 16, step).sum((1, 3)).flatten(1)
        bands = [values[:, i * c : min(i + 64, d) * c] for i in range(0, d, 64)]
        of_values = [band.view(-1, c // step, band.shape[1] // c, step).sum((1, 3)) for band in bands]
        return torch.stack([of_keys, torch.cat(of_values, 1)], 1)

    def _stored(self, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a chunk in their packed order, float32 `[layers * h_kv, c * d]`."""
        keys, values = (part.flatten(0, 1).flatten(1) for part in self._chunk(chunk))
        if self.kv_dtype == "same":
            return keys.float(), values.float()
        c, d = self.chunk_size, self.head_dim
        numbers = keys[:, : 2 * c * d].contiguous().view(NUMBERS[self.kv_dtype]).float()
        of_keys, of_values = numbers[:, : c * d].view(-1, c // 16, d, 16), numbers[:, c * d :]
        bands = [of_values[:, i * c : min(i + 64, d) * c].unflatten(1, (c, -1)) for i in range(0, d, 64)]
        if self.kv_dtype != "fp8":
            floats = keys[:, 2 * c * d :].contiguous().view(torch.float32).unflatten(1, (2, -1, c)).unbind(1)
            own = [floats[0].unflatten(2, (-1, 1, 16)), *[floats[1][..., None]] * len(bands)]
            for part, each in zip([of_keys, *bands], own, strict=True):
                part.sub_(each[:, 1] if self.kv_dtype == "uint8" else 0).mul_(each[:, 0])
        return of_keys.flatten(1), torch.cat([band.flatten(1) for band in bands], 1)

    def keys(self, chunk: int) -> torch.Tensor:
        """K of a full latent chunk: `[layers * h_kv, c, d]`."""
        step, c, d = 2 if self.dtype == torch.bfloat16 else 1, self.chunk_size, self.head_dim
        blocks = self._chunk(chunk)[0].contiguous().view(self.dtype).view(-1, c // 16, d // step, 16, step)
        return blocks.transpose(2, 3).reshape(-1, c, d)

    def copy(self, source: int, target: int, tokens: int, held: int) -> None:
        if target != source:
            keys, values = self._chunk(target)
            from_keys, from_values = self._chunk(source)
            keys.copy_(from_keys)
            values.copy_(from_values)
        (address,) = self.chunk_addresses(np.array([target]))
        for shift in range(0, self.layers * self.layer_bytes, self.layer_bytes):
            self._native.cut(*self._shape, int(address) + shift, tokens, held, self.value_dim)

    @property
    def _strides(self) -> tuple[int, int]:
        return self.chunk_bytes, self.chunk_bytes

    def _allocate(self, chunks: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.kv_dtype != "same" or not self._whole:
            shape_of_heads = (chunks, self.layers, self.kv_heads, self._head_bytes)
            heads = torch.empty(shape_of_heads, dtype=torch.uint8).transpose(0, 1)
            return heads, heads
        shape = (chunks, self.layers, self.kv_heads, 2, self.chunk_size, self.head_dim)
        both = self._numbers(math.prod(shape)).view(shape).transpose(0, 1)
        return both[:, :, :, 0], both[:, :, :, 1]

    def _numbers(self, count: int) -> torch.Tensor:
        """Uninitialized memory for K and V `[count]`."""
        return torch.empty(count, dtype=self.dtype)

    def _pack(self, chunks: Ints, slots: Ints, k: torch.Tensor, v: torch.Tensor, layer: int) -> None:
        if layer:
            chunks = chunks + layer * self.layer_bytes
        dtype, _, head_dim, chunk_size, form = self._shape
        pack_tokens((dtype, k.shape[1], head_dim, chunk_size, form), k, v, chunks, slots)


class BorrowedStore(PackedStore):
    """A store of one layer whose chunks lie in a buffer `[n]` of the caller. The contents of the buffer stay."""

    def __init__(self, buffer: torch.Tensor, chunk_size: int, kv_heads: int, head_dim: int) -> None:
        super().__init__(chunk_size, kv_heads, head_dim, buffer.dtype)
        self._buffer = buffer

    def _numbers(self, count: int) -> torch.Tensor:
        return self._buffer[:count]
