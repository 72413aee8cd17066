"""Attention of one step of an engine whose K and V lie in blocks. A step has decoded tokens and pieces of prompts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from chunkbench.kernels.cpu import required
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.cpu.store import dtype_name, pack_tokens
from chunkbench.kernels.integers import Ints, ranges
from chunkbench.kernels.items import PromptRows
from chunkbench.kernels.query_rows import QueryRows
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

    def cut(self, base: int, block: int, tokens: int, held: int) -> None:
        """Forget all but the first `tokens` of the `held` tokens of a block. The layer's blocks begin at `base`."""
        shape = dtype_name(self.dtype), self.kv_heads, self.head_dim, self.chunk_size, self.kv_dtype
        required().cut(*shape, base + block * self.block_bytes, tokens, held, self.head_dim)


MOST_DRAFTED = 32
"""Largest number of rows of a sequence that are planned like a decoded token. More rows are a piece of a prompt."""
BLOCK_TOKENS = 16
"""Tokens of K that the kernels store together (attention.h)."""


class Steps:
    """Plans steps from block tables, and writes K and V and computes attention in all layers with the same block table.

    A sequence with few rows verifies a draft, or computes the end of a prompt. Its rows share the reads of a prefix
    with all other sequences.
    """

    def __init__(self, blocks: Blocks, heads: int) -> None:
        """`heads`: number of query heads."""
        self._size = blocks.chunk_size
        self._shape = (0, heads, blocks.head_dim)
        self._dtype = blocks.dtype
        self._blocks = blocks
        self._held: Ints = np.zeros(0, np.int64)  # by block: tokens that were written to it
        self._cuts: list[tuple[int, int, int]] = []  # block, tokens that stay, tokens that were written
        self._forest = BlockForest(self._size)
        self._native = TppNative(blocks, heads)

    def plan(self, table: Ints, lengths: Ints, starts: Ints) -> None:
        """Plan a step.

        `table` `[b, blocks]`: block ids. `lengths` `[b]`: tokens of each sequence, including those of this step.
        `starts` `[b + 1]`: rows `starts[i] .. starts[i + 1] - 1` are the last tokens of sequence i.
        """
        counts = np.diff(starts)
        self._forget_rejected(table, lengths, counts)
        self._shape = (int(starts[-1]), *self._shape[1:])
        few = (counts >= 1) & (counts <= MOST_DRAFTED)
        if few.all():
            self._native.plan(self._forest.plan(table, lengths), query_rows=QueryRows(counts))
            return
        decoding, computing = np.flatnonzero(few), np.flatnonzero(counts > MOST_DRAFTED)
        prompts = [
            PromptRows(table[row, : -(-lengths[row] // self._size)], lengths[row] - counts[row], counts[row])
            for row in computing
        ]
        order = np.concatenate([decoding, computing])
        rows = ranges(starts[order], counts[order])
        forest = self._forest.plan(table[decoding], lengths[decoding])
        self._native.plan(forest, prompts, rows, QueryRows(counts[decoding]))

    def write(self, base: int, k: torch.Tensor, v: torch.Tensor, slots: Ints, kv_scales: int = 0) -> None:
        """Write K and V of the planned step to the layer whose blocks begin at address `base`: see `Blocks.write`."""
        for cut in self._cuts:
            self._blocks.cut(base, *cut)
        self._blocks.write(base, k, v, slots, kv_scales)

    def _forget_rejected(self, table: Ints, lengths: Ints, counts: Ints) -> None:
        """Find the blocks in which a step continues before tokens that an earlier step wrote: a draft was rejected.

        Sixteen tokens of K change their order when the last of them is written. So the tokens that stay must get
        their first order again, in each layer, before others are written.
        """
        some = np.flatnonzero(counts)
        table, lengths, first = table[some], lengths[some], (lengths - counts)[some]
        rows, last = np.arange(len(some)), (lengths - 1) // self._size
        if not len(some):
            self._cuts = []
            return
        most = int(table[:, : int(last.max()) + 1].max()) + 1
        if most > len(self._held):
            self._held = np.append(self._held, np.zeros(most + most // 2 - len(self._held), np.int64))
        blocks, places = table[rows, first // self._size].astype(np.int64), first % self._size
        held = self._held[blocks]
        stale = (places % BLOCK_TOKENS > 0) & (held >= (places // BLOCK_TOKENS + 1) * BLOCK_TOKENS)
        self._cuts = list(zip(blocks[stale].tolist(), places[stale].tolist(), held[stale].tolist(), strict=True))
        full = last - first // self._size  # blocks that this step fills
        self._held[table[np.repeat(rows, full), ranges(first // self._size, full)]] = self._size
        self._held[table[rows, last]] = (lengths - 1) % self._size + 1

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
