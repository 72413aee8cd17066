"""Sessions whose K and V lie in blocks of tokens, for kernels that read them through block tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from chunkbench.attention.blocks import BlockTables
from chunkbench.bench.contract import Inputs, Session
from chunkbench.kernels.eight_bits import narrow
from chunkbench.kernels.integers import Ints
from chunkbench.kv_dtype import width

_COPY_TOKENS = 4096  # tokens that one copy moves during `prepare`


class BlockSession(Session):
    """A session with a block table for every sequence. A token's slot is block * block_size + position in the block.

    With `share`, sequences with a common prefix use the same blocks. Subclasses allocate `_blocks` blocks and then call
    `_fill`.
    """

    def __init__(self, inputs: Inputs, share: bool, block_size: int) -> None:
        point = inputs.point
        self._block_size = block_size
        self._block_bytes = block_size * point.token_bytes
        self._tables = BlockTables(block_size, share, max_tokens=inputs.capacity)
        self._joined = [self._tables.join(prompt) for prompt in inputs.prompts]
        self._prompts = self._tables.lengths.tolist()
        # The tables give out the lowest free id first, so every id, those of completion tokens too, is below this.
        self._blocks = self._tables.tree.pool.in_use + point.batch_size * -(-point.n_c // block_size)

    @abstractmethod
    def _write(self, slots: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write K and V `[n, kv_heads, d]` to the slots `[n]`."""

    def _fill(self, inputs: Inputs) -> None:
        """Write K and V of the prompts. Tokens of shared blocks are written once."""
        for row, join in enumerate(self._joined):
            for offset in range(0, len(join.slots), _COPY_TOKENS):
                slots = join.slots[offset : offset + _COPY_TOKENS]
                start = join.cached + offset
                self._write(slots, *inputs.keys_values(row, start, start + len(slots)))

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._write(self._tables.append(token_ids), k, v)

    def rewind(self) -> None:
        for join, length in zip(self._joined, self._prompts, strict=True):
            self._tables.truncate(join.sequence, length)  # its own blocks: nothing to copy

    def kv_bytes(self) -> int:
        return self._tables.tree.pool.in_use * self._block_bytes

    def _device_tables(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Block table `[b, blocks]`, up to the longest sequence, and lengths `[b]`, both int32 on the device."""
        lengths = self._tables.lengths
        used = -(-int(lengths.max()) // self._block_size)
        # Copy the table: it changes in place at the next step, and on a CPU the tensor would share its memory.
        table = torch.from_numpy(self._tables.table[:, :used].copy())
        return table.to(device), torch.from_numpy(lengths).to(device)


class PoolSession(BlockSession):
    """A session whose blocks lie in two tensors `_k` and `_v` `[blocks, block_size, kv_heads, d]`. In 8 bits they hold
    the bytes that `eight_bits.narrow` makes.

    With `head_major` the tensors are `[kv_heads, slots, d]`, so the slots of a head are contiguous. The number of slots
    is then a multiple of 128, so no kernel has to check for the end.
    """

    def __init__(self, inputs: Inputs, block_size: int, head_major: bool = False) -> None:
        super().__init__(inputs, True, block_size)
        point = inputs.point
        self._kv_dtype = point.kv_dtype
        h_kv, d = point.kv_heads, width(point.head_dim, point.kv_dtype)
        slots = -(-self._blocks * block_size // 128) * 128
        shape = (h_kv, slots, d) if head_major else (self._blocks, block_size, h_kv, d)
        dtype = getattr(torch, point.dtype) if point.kv_dtype == "same" else torch.uint8
        # Zeros, because a kernel may multiply unfilled slots by a weight of zero, and uninitialised memory can be NaN.
        self._k, self._v = (torch.zeros(shape, dtype=dtype, device=point.device) for _ in range(2))
        self._by_slot = [x.transpose(0, 1) if head_major else x.flatten(0, 1) for x in (self._k, self._v)]
        self._fill(inputs)

    def _write(self, slots: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        indices = torch.from_numpy(slots).to(self._k.device)
        for target, source in zip(self._by_slot, (k, v), strict=True):
            target.index_copy_(0, indices, narrow(source, self._kv_dtype))
