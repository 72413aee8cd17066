"""Block kernels: attention of a rank's queries over a block of K and V, added to the results of earlier blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from chunkbench.kernels.cpu.decode import NativeDecode
from chunkbench.kernels.cpu.store import BorrowedStore
from chunkbench.kernels.integers import Ints
from chunkbench.kernels.items import items_of_lengths, items_of_tables
from chunkbench.workloads.ring.running import Running

CHUNK_SIZE = 64


class Heads(NamedTuple):
    """Shape and dtype of q, K and V, without the number of tokens."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype


class BlockKernel(Protocol):
    """A kernel that computes attention over a block. A block is one tensor, so ranks can send it as it is."""

    def block(self, tokens: int) -> torch.Tensor:
        """Allocate an empty block for K and V of this number of tokens."""
        ...

    def fill(self, block: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v `[n, h_kv, d]` into a block."""
        ...

    def add(self, q: torch.Tensor, block: torch.Tensor, tokens: int, seen: Ints, running: Running) -> None:
        """Add to `running` the attention of q `[rows, h, d]`. Row i attends to the first `seen[i]` tokens of the block
        (`placement.visible`).
        """
        ...


class NativeBlocks:
    """ChunkAttn's kernel over packed chunks (`chunkbench.kernels.cpu`)."""

    def __init__(self, shape: Heads) -> None:
        self._shape = shape

    def block(self, tokens: int) -> torch.Tensor:
        shape = self._shape
        padded = -(-tokens // CHUNK_SIZE) * CHUNK_SIZE
        return torch.zeros(2 * padded * shape.kv_heads * shape.head_dim, dtype=shape.dtype)

    def fill(self, block: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        store, chunks = self._chunks(block, len(k))
        store.fill(chunks, k, v)

    def add(self, q: torch.Tensor, block: torch.Tensor, tokens: int, seen: Ints, running: Running) -> None:
        if not seen.any():
            return
        store, chunks = self._chunks(block, tokens)
        kernel = NativeDecode(store, self._shape.heads)
        items, last_tokens = items_of_lengths(chunks, tokens, seen, CHUNK_SIZE)
        kernel.make(items, len(last_tokens))
        kernel.set_last_tokens(last_tokens)
        kernel.accumulate(q, running.outputs, running.stats)

    def sequences(self, sequences: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Build a block with K and V `[n, h_kv, d]` of several sequences of the same length, each in whole chunks."""
        each = -(-len(sequences[0][0]) // CHUNK_SIZE) * CHUNK_SIZE
        block = self.block(len(sequences) * each)
        for part, (k, v) in zip(block.chunk(len(sequences)), sequences, strict=True):
            self.fill(part, k, v)
        return block

    def add_sequences(self, q: torch.Tensor, block: torch.Tensor, tokens: int, rows: Ints, running: Running) -> None:
        """Add the attention of these rows to `running`. Each row attends to one sequence of a block that `sequences`
        built. Every sequence has `tokens` tokens.
        """
        each = -(-tokens // CHUNK_SIZE)
        store, chunks = self._chunks(block, len(rows) * each * CHUNK_SIZE)
        kernel = NativeDecode(store, self._shape.heads)
        kernel.make(items_of_tables(chunks, np.full(len(rows), each), rows), len(q))
        kernel.set_last_tokens(np.full(len(q), (tokens - 1) % CHUNK_SIZE + 1))
        kernel.accumulate(q, running.outputs, running.stats)

    def _chunks(self, block: torch.Tensor, tokens: int) -> tuple[BorrowedStore, Ints]:
        shape, count = self._shape, -(-tokens // CHUNK_SIZE)
        store = BorrowedStore(block, CHUNK_SIZE, shape.kv_heads, shape.head_dim)
        store.grow(count)
        return store, np.arange(count)


class FlashBlocks:
    """PyTorch's flash attention operator, which also returns the log-sum-exp of the scores."""

    def __init__(self, shape: Heads, device: str = "cpu") -> None:
        self._shape, self._device = shape, device

    def block(self, tokens: int) -> torch.Tensor:
        shape = self._shape
        sizes = (2, shape.kv_heads, tokens, shape.head_dim)
        return torch.zeros(sizes, dtype=shape.dtype, device=self._device)

    def fill(self, block: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        block[0].copy_(k.transpose(0, 1))
        block[1].copy_(v.transpose(0, 1))

    def add(self, q: torch.Tensor, block: torch.Tensor, tokens: int, seen: Ints, running: Running) -> None:
        for rows, keys, causal in rectangles(seen):
            queries = q[rows].transpose(0, 1)[None]
            out, log_sums = flash(queries, block[0, :, keys][None], block[1, :, keys][None], causal)
            running.add(rows, out[0].transpose(0, 1), log_sums[0, :, : queries.shape[2]].transpose(0, 1))


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's flash attention of `[1, h, n, d]`: outputs, and the log-sum-exp `[1, h, n]` of the scaled scores."""
    operators = torch.ops.aten
    on_cpu, on_gpu = (
        operators._scaled_dot_product_flash_attention_for_cpu,
        operators._scaled_dot_product_flash_attention,
    )
    out, log_sums, *_ = (on_cpu if q.device.type == "cpu" else on_gpu)(q, k, v, 0.0, causal)
    return out, log_sums


def rectangles(seen: Ints) -> Iterator[tuple[slice, slice, bool]]:
    """Split attention into full and causal calls. Row i attends to the first `seen[i]` keys. Yields (rows, keys,
    whether the call is causal).

    Rows that see no key must come first. Consecutive rows with equal `seen` take one call. Consecutive rows whose
    `seen` grows by one from row to row take at most two calls.
    """
    first = int(np.argmax(seen > 0)) if seen.any() else len(seen)
    while first < len(seen):
        steps = np.diff(seen[first:])
        if len(steps) == 0 or steps[0] == 0:
            rows = 1 + int(np.argmax(np.append(steps, 1) != 0))
            yield slice(first, first + rows), slice(0, int(seen[first])), False
        else:
            rows = 1 + int(np.argmax(np.append(steps, 0) != 1))
            before = int(seen[first]) - 1
            if before:
                yield slice(first, first + rows), slice(0, before), False
            yield slice(first, first + rows), slice(before, before + rows), True
        first += rows
