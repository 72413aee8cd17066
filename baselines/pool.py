"""K and V in blocks of tokens that sequences share, for libraries that read K and V through block tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from chunkbench.baselines.contract import Inputs
from chunkbench.kvcache import BlockTables, PrefixTree
from chunkbench.kvcache.integers import Ints

_COPY_TOKENS = 4096  # tokens that one copy moves during `prepare`


class BlockPool:
    """Memory for K and V in blocks of tokens; a token's slot is block * block_size + position in the block.

    `k` and `v` are `[blocks, block_size, kv_heads, d]`. With `head_major` they are `[kv_heads, slots, d]`: the slots of
    one head are contiguous, and their number is a multiple of 128, so that no kernel has to check for the end.
    """

    def __init__(self, inputs: Inputs, blocks: int, block_size: int, head_major: bool = False) -> None:
        point = inputs.point
        h_kv, d = point.kv_heads, point.head_dim
        slots = -(-blocks * block_size // 128) * 128
        shape = (h_kv, slots, d) if head_major else (blocks, block_size, h_kv, d)
        dtype = getattr(torch, point.dtype)
        # Zeros, because a kernel may multiply unfilled slots by a weight of zero, and uninitialised memory can be NaN.
        self.k = torch.zeros(shape, dtype=dtype, device=point.device)
        self.v = torch.zeros(shape, dtype=dtype, device=point.device)
        by_slot = [x.transpose(0, 1) if head_major else x.flatten(0, 1) for x in (self.k, self.v)]
        self._k_by_slot, self._v_by_slot = by_slot
        self.block_bytes = block_size * point.token_bytes

    def write(self, slots: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        """Copy K and V `[n, kv_heads, d]` to the slots `[n]`."""
        indices = torch.from_numpy(slots).to(self.k.device)
        self._k_by_slot.index_copy_(0, indices, k)
        self._v_by_slot.index_copy_(0, indices, v)

    def fill(self, inputs: Inputs, row: int, start: int, slots: Ints) -> None:
        """Copy K and V of the prompt tokens `start`, `start + 1`, ... to `slots`, one slot per token."""
        for offset in range(0, len(slots), _COPY_TOKENS):
            part = slots[offset : offset + _COPY_TOKENS]
            k, v = inputs.keys_values(row, start + offset, start + offset + len(part))
            self.write(part, k, v)


def _completion_blocks(inputs: Inputs, block_size: int) -> int:
    """Upper bound of the number of blocks that the completion tokens need."""
    return inputs.point.batch_size * -(-inputs.point.n_c // block_size)


class SharedBlocks:
    """Block tables in which sequences share the blocks of a common prefix, and the pool of those blocks."""

    def __init__(self, inputs: Inputs) -> None:
        self.block_size = inputs.point.block_size
        self.tables = BlockTables(self.block_size, share=True, max_tokens=inputs.capacity)
        joined = [self.tables.join(prompt) for prompt in inputs.prompts]
        # The tables give out the lowest free id first, so every id fits a pool of this size.
        blocks = self.tables.pool.in_use + _completion_blocks(inputs, self.block_size)
        self.pool = BlockPool(inputs, blocks, self.block_size)
        for row, join in enumerate(joined):
            self.pool.fill(inputs, row, join.cached, join.slots)
        self._prompts = [(join.sequence, len(prompt)) for join, prompt in zip(joined, inputs.prompts, strict=True)]

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Append one token to each sequence; k, v `[b, kv_heads, d]`."""
        self.pool.write(self.tables.append(token_ids), k, v)

    def rewind(self) -> None:
        """Remove all completion tokens and keep the prompts."""
        for sequence, length in self._prompts:
            self.tables.truncate(sequence, length)

    def kv_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self.tables.pool.in_use * self.pool.block_bytes


class SharedTree:
    """A prefix tree over blocks, and their pool: for adapters that need to know which sequences share a block."""

    def __init__(self, inputs: Inputs, block_size: int, head_major: bool = False) -> None:
        self.block_size = block_size
        self.tree = PrefixTree(block_size)
        joined = [self.tree.join(prompt) for prompt in inputs.prompts]
        blocks = self.tree.pool.in_use + _completion_blocks(inputs, block_size)
        self.pool = BlockPool(inputs, blocks, block_size, head_major)
        for row, (join, prompt) in enumerate(zip(joined, inputs.prompts, strict=True)):
            slots = (join.chunks[:, None] * block_size + np.arange(block_size)).ravel()
            self.pool.fill(inputs, row, join.cached, slots[: len(prompt) - join.cached])
        self._prompts = [(join.sequence, len(prompt)) for join, prompt in zip(joined, inputs.prompts, strict=True)]

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> Ints:
        """Append one token to each sequence; k, v `[b, kv_heads, d]`. Returns the tokens' slots `[b]`."""
        appended = self.tree.append(token_ids)
        slots = appended.chunks * self.block_size + appended.slots
        self.pool.write(slots, k, v)
        return slots

    def rewind(self) -> None:
        """Remove all completion tokens and keep the prompts."""
        for sequence, length in self._prompts:
            self.tree.truncate(sequence, length)

    def kv_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self.tree.pool.in_use * self.pool.block_bytes
