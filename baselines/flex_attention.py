"""FlexAttention: PyTorch's compiled attention with a user-defined mask. Every shared prefix is stored once.

The K/V of all distinct chunks form one sequence of slots, and the queries of all sequences form one sequence of rows.
The mask says which row sees which slot. One kernel then reads every slot once for up to 128 rows. The cost is extra
arithmetic: the kernel also computes scores that the mask hides. For a block of rows, it
skips only the blocks of slots that none of these rows sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from chunkbench.baselines import on_gpu
from chunkbench.baselines.block_session import PoolSession
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.kernels.integers import Ints
from chunkbench.kernels.plan import Plan

BLOCK = 128  # rows, and slots, of one block of the mask: PyTorch's default

Matrix = npt.NDArray[np.bool_]


def blocks_of(plan: Plan, slots: int) -> tuple[Matrix, Matrix]:
    """Two matrices of flags `[row blocks, slot blocks]`: whether the mask shows a block in part, and whether it shows
    the block in full.

    Slots of a chunk that no token fills yet count as visible, so that a partial block stays valid while tokens fill it.
    """
    rows = len(plan.order)
    row_blocks, slot_blocks = -(-rows // BLOCK), -(-slots // BLOCK)
    sizes = np.minimum(BLOCK, rows - BLOCK * np.arange(row_blocks))
    seen = np.zeros((row_blocks, slot_blocks), np.bool_)
    filled = np.zeros((row_blocks, slot_blocks), np.int64)  # slots of the slot block that every row of the block sees
    for segment, tokens in zip(plan.segments, plan.tokens, strict=True):
        rows_inside = np.bincount(plan.order[segment.begin : segment.end] // BLOCK, minlength=row_blocks)
        block_of_slot = _slots(segment.chunks, plan.chunk_size) // BLOCK
        seen[np.ix_(rows_inside > 0, np.unique(block_of_slot))] = True
        held = np.bincount(block_of_slot[:tokens], minlength=slot_blocks)
        filled[rows_inside == sizes] += held
    full = filled == BLOCK
    return seen & ~full, full


def _slots(chunks: Ints, chunk_size: int) -> Ints:
    """Indices of the token slots of `chunks`, chunk by chunk."""
    return (chunks[:, None] * chunk_size + np.arange(chunk_size)).ravel()


def _listed(blocks: Matrix, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts `[1, 1, n]` and indices `[1, 1, n, m]` of the true entries in each row of a matrix, in the form that
    `BlockMask` takes.

    In each row the indices of the true entries come before those of the false ones.
    """
    indices = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    counts = blocks.sum(1, dtype=np.int32)
    return torch.from_numpy(counts)[None, None].to(device), torch.from_numpy(indices)[None, None].to(device)


@lru_cache(maxsize=1)
def _compiled(point: AttentionPoint) -> Any:
    """The compiled function; all sessions of a point share it.

    PyTorch limits how often it compiles one function for new shapes, and a worker measures many points. So each point
    drops the code of the point before it. With `fullgraph`, PyTorch raises an error instead of running uncompiled code.
    """
    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


class FlexSession(PoolSession):
    """A session of FlexAttention. Runs are measured with `compiled`. Without `compiled`, PyTorch computes the same with
    plain operations, for tests."""

    def __init__(self, inputs: Inputs, compiled: bool) -> None:
        point = inputs.point
        super().__init__(inputs, point.chunk_size, head_major=True)
        self._attention: Any = _compiled(point) if compiled else flex_attention
        self._grouped = point.heads != point.kv_heads
        self._kv = self._k[None], self._v[None]  # [1, kv_heads, slots, d]
        self._planned: Plan | None = None
        # For each slot, the range of positions (rows in depth-first order) that see it; for each row, its position.
        device = self._k.device
        self._begin = torch.zeros(self._k.shape[1], dtype=torch.int32, device=device)
        self._end = torch.zeros_like(self._begin)
        self._position = torch.zeros(point.batch_size, dtype=torch.int32, device=device)
        self._mask: BlockMask | None = None
        begin, end, position = self._begin, self._end, self._position

        def sees(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            return (begin[slot] <= position[row]) & (position[row] < end[slot])

        # Keep one function object: PyTorch would compile again for another one.
        self._sees = sees
        self.plan()
        if compiled:
            on_gpu.compile_now(self, inputs)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        slots = self._tables.append(token_ids)
        self._write(slots, k, v)
        index = torch.from_numpy(slots).to(self._k.device)
        self._begin[index] = self._position
        self._end[index] = self._position + 1

    def plan(self) -> None:
        plan = self._tables.tree.plan()
        if plan is self._planned:
            return
        self._planned = plan
        device = self._k.device
        begins, ends = np.zeros((2, len(self._begin)), np.int32)
        for segment, tokens in zip(plan.segments, plan.tokens, strict=True):
            slots = _slots(segment.chunks, plan.chunk_size)[:tokens]
            begins[slots], ends[slots] = segment.begin, segment.end
        positions = np.empty(len(plan.order), np.int32)
        positions[plan.order] = np.arange(len(plan.order))
        # Update in place, because the compiled kernel refers to these tensors.
        self._begin.copy_(torch.from_numpy(begins))
        self._end.copy_(torch.from_numpy(ends))
        self._position.copy_(torch.from_numpy(positions))
        part, full = blocks_of(plan, len(self._begin))
        self._mask = BlockMask.from_kv_blocks(
            *_listed(part, device),
            *_listed(full, device),
            BLOCK_SIZE=BLOCK,
            mask_mod=self._sees,
            seq_lengths=(len(positions), len(self._begin)),
        )

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        rows = q.transpose(0, 1)[None]  # [1, heads, b, d]
        result = self._attention(rows, *self._kv, block_mask=self._mask, enable_gqa=self._grouped)
        out.copy_(result[0].transpose(0, 1))

    def rewind(self) -> None:
        super().rewind()
        # The mask's full blocks may hold slots that are free again now, even if the tree's plan is the same object.
        self._planned = None
        self.plan()


class FlexAttention(Implementation):
    shares_storage = True
    reads_shared_once = True

    def availability(self, device: str) -> Answer:
        return on_gpu.gpu_alone(device, "FlexAttention is measured only as PyTorch compiles it for GPUs")

    def supports(self, point: AttentionPoint) -> Answer:
        if point.head_dim < 16:
            return Answer(False, f"FlexAttention takes head sizes of 16 or more, not {point.head_dim}")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return FlexSession(inputs, compiled=True)

    def package_version(self) -> str:
        return f"torch {torch.__version__}"
