"""K and V in blocks of tokens that sequences share, for libraries that read through tables of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from chunkbench.baselines.contract import Inputs
from chunkbench.kvcache import BlockTables, PrefixTree
from chunkbench.kvcache.integers import Ints

_PIECE = 4096  # tokens copied at once while preparing


class BlockPool:
    """K and V of blocks of tokens; a token's slot is block * block_size + place in the block.

    `k` and `v` are `[blocks, block_size, kv_heads, d]`. With `head_major` they are `[kv_heads, slots, d]`: the slots of
    one head lie one after the other, a whole number of 128 of them, so that no kernel has to look for their end.
    """

    def __init__(self, inputs: Inputs, blocks: int, block_size: int, head_major: bool = False) -> None:
        point = inputs.point
        h_kv, d = point.kv_heads, point.head_dim
        slots = -(-blocks * block_size // 128) * 128
        shape = (h_kv, slots, d) if head_major else (blocks, block_size, h_kv, d)
        dtype = getattr(torch, point.dtype)
        # Zeros: a kernel may multiply what lies in unfilled slots by a weight of zero, and garbage could be NaN.
        self.k = torch.zeros(shape, dtype=dtype, device=point.device)
        self.v = torch.zeros(shape, dtype=dtype, device=point.device)
        by_slot = [x.transpose(0, 1) if head_major else x.flatten(0, 1) for x in (self.k, self.v)]
        self._k_by_slot, self._v_by_slot = by_slot
        self.block_bytes = block_size * point.token_bytes

    def write(self, slots: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        """K and V `[n, kv_heads, d]` to the slots `[n]`."""
        places = torch.from_numpy(slots).to(self.k.device)
        self._k_by_slot.index_copy_(0, places, k)
        self._v_by_slot.index_copy_(0, places, v)

    def fill(self, inputs: Inputs, row: int, start: int, slots: Ints) -> None:
        """A prompt's tokens from `start` on to the slots `[n - start]`, which are theirs in order."""
        for done in range(0, len(slots), _PIECE):
            piece = slots[done : done + _PIECE]
            k, v = inputs.keys_values(row, start + done, start + done + len(piece))
            self.write(piece, k, v)


def _blocks_to_come(inputs: Inputs, block_size: int) -> int:
    """Most blocks that the completion tokens will take."""
    return inputs.point.batch_size * -(-inputs.point.n_c // block_size)


class SharedBlocks:
    """Block tables that name a common prefix's blocks once, and the pool that they name."""

    def __init__(self, inputs: Inputs) -> None:
        self.block_size = inputs.point.block_size
        self.tables = BlockTables(self.block_size, share=True, max_tokens=inputs.capacity)
        joined = [self.tables.join(prompt) for prompt in inputs.prompts]
        # Ids are handed out lowest first, so that a pool of this size never names a block beyond it.
        blocks = self.tables.pool.in_use + _blocks_to_come(inputs, self.block_size)
        self.pool = BlockPool(inputs, blocks, self.block_size)
        for row, join in enumerate(joined):
            self.pool.fill(inputs, row, join.cached, join.slots)
        self._prompts = [(join.sequence, len(prompt)) for join, prompt in zip(joined, inputs.prompts, strict=True)]

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """One token per sequence; k, v `[b, kv_heads, d]`."""
        self.pool.write(self.tables.append(token_ids), k, v)

    def rewind(self) -> None:
        """Back to the prompts alone."""
        for sequence, length in self._prompts:
            self.tables.truncate(sequence, length)

    def kv_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self.tables.pool.in_use * self.pool.block_bytes


class SharedTree:
    """The prefix tree over blocks, and the pool that holds them: for those who need to know who shares what."""

    def __init__(self, inputs: Inputs, block_size: int, head_major: bool = False) -> None:
        self.block_size = block_size
        self.tree = PrefixTree(block_size)
        joined = [self.tree.join(prompt) for prompt in inputs.prompts]
        blocks = self.tree.pool.in_use + _blocks_to_come(inputs, block_size)
        self.pool = BlockPool(inputs, blocks, block_size, head_major)
        for row, (join, prompt) in enumerate(zip(joined, inputs.prompts, strict=True)):
            slots = (join.chunks[:, None] * block_size + np.arange(block_size)).ravel()
            self.pool.fill(inputs, row, join.cached, slots[: len(prompt) - join.cached])
        self._prompts = [(join.sequence, len(prompt)) for join, prompt in zip(joined, inputs.prompts, strict=True)]

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> Ints:
        """One token per sequence; k, v `[b, kv_heads, d]`. Returns their slots `[b]`."""
        appended = self.tree.append(token_ids)
        slots = appended.chunks * self.block_size + appended.slots
        self.pool.write(slots, k, v)
        return slots

    def rewind(self) -> None:
        """Back to the prompts alone."""
        for sequence, length in self._prompts:
            self.tree.truncate(sequence, length)

    def kv_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self.tree.pool.in_use * self.pool.block_bytes
