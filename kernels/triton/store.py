"""The chunk store of the GPU kernels. The device keeps the last chunk of each row and its number of tokens, and counts
appended tokens itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import count

import numpy as np
import torch

from chunkbench.kernels.changes import Append
from chunkbench.kernels.chunk_store import AddressedStore
from chunkbench.kernels.integers import Ints
from chunkbench.kernels.triton import constants
from chunkbench.kernels.triton.attention import append_tokens
from chunkbench.kernels.triton.constants import PLACE_BYTES
from chunkbench.kernels.triton.staging import Staging
from chunkbench.kv_dtype import KvDtype


class TritonStore(AddressedStore):
    """A chunk store that appends with one launch and keeps the end of each row on the device.

    k and v may have n times as many KV heads as the store. Then they are written to n consecutive layers.

    While rows grow inside their chunks, it copies no integers to the device: the launch that writes a token counts it.
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
        rope: int = 0,
        latent: bool = False,
    ) -> None:
        """`rope`: numbers of a key behind the first `head_dim`, which V has not. With `latent`, a chunk holds K alone,
        and V is its first `head_dim` numbers."""
        value_dim = 0 if latent else head_dim
        super().__init__(chunk_size, kv_heads, head_dim + rope, dtype, device, layers, kv_dtype, value_dim)
        self.sizes = constants.Sizes(
            kv_heads, kv_heads, head_dim, chunk_size, dtype, kv_dtype=kv_dtype, rope=rope, latent=latent
        )
        """The shape of the chunks, as the kernels need it."""
        self._append_constants = cache(lambda kv_heads: constants.append_tokens(self.sizes._replace(kv_heads=kv_heads)))
        self.tail_keys = torch.empty(0, dtype=torch.int64, device=self.device)
        self.tail_values = self.tail_keys
        self.tokens = self.tail_keys
        """`[rows]` int32: current number of tokens in the last chunk of each row."""
        self._staging = Staging(self.device, 0)
        self._chunks = np.empty(0, np.int64)  # last chunk of each row, as on the device
        self._tokens = np.empty(0, np.int64)
        self._room = 0

    def places(self, chunks: Ints) -> tuple[Ints, Ints]:
        if not self.slabs:
            return chunks, chunks
        keys, values = self.addresses(chunks)
        first_key, first_value = self._bases[:, 0]
        return (keys - first_key) // PLACE_BYTES, (values - first_value) // PLACE_BYTES

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.slabs[0].keys[layer], self.slabs[0].values[layer]
        return (keys.view(torch.int8), values.view(torch.int8)) if self.kv_dtype == "int8" else (keys, values)

    def reserve_rows(self, rows: int) -> None:
        if rows <= self._room:
            return
        room = -(-max(rows, 2 * self._room) // 32) * 32
        self._staging = Staging(self.device, 5 * room)
        flat, self._room = self._staging.device, room
        self.tail_keys = flat[: 2 * room].view(torch.int64)
        self.tail_values = flat[2 * room : 4 * room].view(torch.int64)
        self.tokens = flat[4 * room :]
        self._chunks = np.empty(0, np.int64)  # the new buffers are empty

    def follow(self, chunks: Ints, tokens: Ints) -> None:
        if np.array_equal(chunks, self._chunks) and np.array_equal(tokens, self._tokens):
            return
        rows = len(chunks)
        self.reserve_rows(rows)
        host, room = self._staging.host, self._room
        keys, values = self.places(chunks)
        host[: 2 * rows].view(np.int64)[:] = keys
        host[2 * room : 2 * (room + rows)].view(np.int64)[:] = values
        host[4 * room : 4 * room + rows] = tokens
        self._staging.send()
        self._chunks, self._tokens = chunks.copy(), np.array(tokens, np.int64)

    def fill(self, chunks: Ints, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        for part in self._by_layer(k, v, layer):
            super().fill(chunks, *part)

    def append(self, appended: Append, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        """Write k, v `[n, h_kv, d]` of a layer to the token slots of the appended tokens.

        One token for every row needs one launch. Other appends also copy indices to the device.
        """
        chunks, slots = appended.chunks, appended.slots
        if len(chunks) == 0:
            return
        if not appended.every_row:
            for part in self._by_layer(k, v, layer):
                super().append(appended, *part)
            self._chunks = np.empty(0, np.int64)  # the ends of rows on the device are outdated
            return
        counted = np.array_equal(chunks, self._chunks) and np.array_equal(slots + 1, self._tokens)
        if not counted:
            self.follow(chunks, slots)
            self._tokens = self._tokens + 1
        append_tokens[(len(chunks),)](
            k.contiguous(),
            v.contiguous() if self.value_dim else k,
            *self.layer(layer),
            self.tail_keys,
            self.tail_values,
            self.tokens,
            **self._append_constants(k.shape[1]),
            COUNTED=counted,
        )

    def _by_layer(
        self, k: torch.Tensor, v: torch.Tensor, layer: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        """k and v of this layer, and of those after it if there are more heads than a layer has."""
        parts = (x.split(self.kv_heads, 1) for x in (k, v))
        return zip(*parts, count(layer), strict=False)


class StoredHeads:
    """Makes adjacent heads of a store look like one layer with `kv_heads` KV heads. Each layer of the store has one
    head. The interface is `decode.Places`."""

    def __init__(self, store: TritonStore, kv_heads: int) -> None:
        self._store = store
        self.sizes = store.sizes._replace(heads=kv_heads, kv_heads=kv_heads)
        self.device = store.device
        self.places, self.reserve_rows = store.places, store.reserve_rows
        self.follow, self.layer = store.follow, store.layer

    @property
    def tokens(self) -> torch.Tensor:
        return self._store.tokens
