"""Attention of one step of an engine whose K and V lie in blocks. A step has decoded tokens and pieces of prompts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.cpu.store import dtype_name, pack_tokens
from chunkbench.kernels.integers import Ints, ranges
from chunkbench.kernels.items import PromptRows
from chunkbench.kv_dtype import KvDtype, kv_bytes
from chunkbench.plugins.vllm.forest import BlockForest


class Blocks(NamedTuple):
    """The shape of a layer's blocks. A block holds the K and then the V of each KV head, in the layout of the native
    kernels."""

    kv_heads: int
    head_dim: int
    chunk_size: int
    """Tokens of a block."""
    dtype: torch.dtype
    kv_dtype: KvDtype = "same"

    @property
    def value_dim(self) -> int:
        return self.head_dim

    @property
    def form(self) -> str:
        return self.kv_dtype

    @property
    def layer_bytes(self) -> int:
        """Bytes from the blocks of a layer to those of the next layer. Always 0, because each layer has separate
        memory. `Steps.attend` gets the address of the layer's memory."""
        return 0

    @property
    def block_bytes(self) -> int:
        return self.kv_heads * self.chunk_size * kv_bytes(self.head_dim, self.dtype.itemsize, self.kv_dtype)

    def chunk_addresses(self, chunks: Ints) -> Ints:
        """Where the blocks with the ids `chunks` begin, in bytes from the beginning of the layer's memory."""
        return chunks * self.block_bytes

    def write(self, base: int, k: torch.Tensor, v: torch.Tensor, slots: Ints, scales: int = 0) -> None:
        """Write k and v `[n, kv_heads, head_dim]` to the layer whose blocks begin at address `base`. `scales`: see
        `NativeDecode.decode_at`.

        `slots` `[n]`: block * chunk_size + place in the block. Tokens with a negative slot are skipped.
        """
        if len(slots) and slots.min() < 0:
            kept = np.flatnonzero(slots >= 0)
            index = torch.from_numpy(kept)
            k, v, slots = k.index_select(0, index), v.index_select(0, index), slots[kept]
        blocks, places = np.divmod(slots, self.chunk_size)
        shape = dtype_name(self.dtype), self.kv_heads, self.head_dim, self.chunk_size, self.kv_dtype
        pack_tokens(shape, k, v, self.chunk_addresses(blocks) + base, places, scales)


class Steps:
    """Plans steps from block tables, and computes their attention in all layers with the same block table."""

    def __init__(self, blocks: Blocks, heads: int) -> None:
        """`heads`: number of query heads."""
        self._size = blocks.chunk_size
        self._shape = (0, heads, blocks.head_dim)
        self._dtype = blocks.dtype
        self._forest = BlockForest(self._size)
        self._native = TppNative(blocks, heads)

    def plan(self, table: Ints, lengths: Ints, starts: Ints) -> None:
        """Plan a step.

        `table` `[b, blocks]`: block ids. `lengths` `[b]`: tokens of each sequence, including those of this step.
        `starts` `[b + 1]`: rows `starts[i] .. starts[i + 1] - 1` are the last tokens of sequence i.
        """
        counts = np.diff(starts)
        self._shape = (int(starts[-1]), *self._shape[1:])
        if (counts == 1).all():
            self._native.plan(self._forest.plan(table, lengths))
            return
        decoding, computing = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
        prompts = [
            PromptRows(table[row, : -(-lengths[row] // self._size)], lengths[row] - counts[row], counts[row])
            for row in computing
        ]
        rows = np.concatenate([starts[decoding], ranges(starts[computing], counts[computing])])
        self._native.plan(self._forest.plan(table[decoding], lengths[decoding]), prompts, rows)

    def attend(self, q: torch.Tensor, out: torch.Tensor, base: int, scale: float, kv_scales: int = 0) -> None:
        """Compute attention of q in the layer whose blocks begin at address `base`, and write it to out. Both are
        `[rows, heads, head_dim]`. `kv_scales`: see `NativeDecode.decode_at`.

        Raises ValueError for tensors that do not fit the planned step.
        """
        for name, tensor in (("q", q), ("out", out)):
            if tensor.shape != self._shape or tensor.dtype != self._dtype:
                raise ValueError(
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)}, the step needs {self._dtype} {self._shape}"
                )
        self._native.decode_at(q, out, base, scale, kv_scales=kv_scales)
