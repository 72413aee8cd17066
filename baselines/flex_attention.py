"""FlexAttention: PyTorch's attention with a mask of one's own, compiled; every shared prefix is there once.

The K/V of all distinct chunks lie end to end as one sequence of slots, the queries of all sequences are one sequence of
rows, and the mask says which row sees which slot. One kernel then reads every slot once for up to 128 rows. The price
is arithmetic: scores of rows and slots that have nothing to do with each other are computed and masked, except where a
whole block of slots is seen by no row of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from chunkbench.baselines import gpu
from chunkbench.baselines.contract import YES, Answer, Implementation, Inputs, Look, Session
from chunkbench.baselines.pool import SharedTree
from chunkbench.experiment.point import Point
from chunkbench.kvcache import Plan
from chunkbench.kvcache.integers import Ints

BLOCK = 128  # rows and slots of a block of the mask, the library's own choice

Matrix = npt.NDArray[np.bool_]


def blocks_of(plan: Plan, slots: int) -> tuple[Matrix, Matrix]:
    """Which blocks of slots the blocks of rows see at all, and which wholly: `[row blocks, slot blocks]` each.

    Room in a chunk that its tokens have not yet filled counts as seen, so that the first stays true while they do.
    """
    rows = len(plan.order)
    row_blocks, slot_blocks = -(-rows // BLOCK), -(-slots // BLOCK)
    sizes = np.minimum(BLOCK, rows - BLOCK * np.arange(row_blocks))
    seen = np.zeros((row_blocks, slot_blocks), np.bool_)
    filled = np.zeros((row_blocks, slot_blocks), np.int64)  # slots of the block that every row of the other sees
    for segment in plan.segments:
        inside = np.bincount(plan.order[segment.begin : segment.end] // BLOCK, minlength=row_blocks)
        reach = _slots(segment.chunks, plan.chunk_size) // BLOCK
        seen[np.ix_(inside > 0, np.unique(reach))] = True
        held = np.bincount(reach[: plan.tokens(segment)], minlength=slot_blocks)
        filled[inside == sizes] += held
    full = filled == BLOCK
    return seen & ~full, full


def _slots(chunks: Ints, chunk_size: int) -> Ints:
    """Slots of chunks, one chunk's after the other's."""
    return (chunks[:, None] * chunk_size + np.arange(chunk_size)).ravel()


def _listed(blocks: Matrix, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers `[1, 1, n]` and indices `[1, 1, n, m]` of the blocks in each row of a matrix, as `BlockMask` has them."""
    first = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    counts = blocks.sum(1, dtype=np.int32)
    return torch.from_numpy(counts)[None, None].to(device), torch.from_numpy(first)[None, None].to(device)


@lru_cache(maxsize=1)
def _compiled(point: Point) -> Any:
    """The compiled function, one for all sessions of a point.

    PyTorch compiles a function for so many shapes and no more, and a worker measures many points: the last one's code
    is dropped. `fullgraph` makes it an error where PyTorch would go on without compiled code.
    """
    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


class FlexSession(Session):
    """`compiled` is what is measured; without, PyTorch computes the same in plain operations (for tests)."""

    def __init__(self, inputs: Inputs, compiled: bool) -> None:
        point = inputs.point
        self._attention: Any = _compiled(point) if compiled else flex_attention
        self._grouped = point.heads != point.kv_heads
        self._shared = SharedTree(inputs, point.chunk_size, head_major=True)
        self._k, self._v = self._shared.pool.k[None], self._shared.pool.v[None]  # [1, kv_heads, slots, d]
        self._planned: Plan | None = None
        # By slot, the range of positions (rows in depth-first order) that see it; by row, its position.
        device = self._k.device
        self._begin = torch.zeros(self._k.shape[2], dtype=torch.int32, device=device)
        self._end = torch.zeros_like(self._begin)
        self._position = torch.zeros(point.batch_size, dtype=torch.int32, device=device)
        self._mask: BlockMask | None = None
        begin, end, position = self._begin, self._end, self._position

        def sees(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            return (begin[slot] <= position[row]) & (position[row] < end[slot])

        # One function for good: another one would be compiled anew.
        self._sees = sees
        self.plan()
        if compiled:
            gpu.compile_now(self, inputs)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        slots = torch.from_numpy(self._shared.append(token_ids, k, v)).to(self._k.device)
        self._begin[slots] = self._position
        self._end[slots] = self._position + 1

    def plan(self) -> None:
        plan = self._shared.tree.plan()
        if plan is self._planned:
            return
        self._planned = plan
        device = self._k.device
        begins, ends = np.zeros((2, len(self._begin)), np.int32)
        for segment in plan.segments:
            slots = _slots(segment.chunks, plan.chunk_size)[: plan.tokens(segment)]
            begins[slots], ends[slots] = segment.begin, segment.end
        positions = np.empty(len(plan.order), np.int32)
        positions[plan.order] = np.arange(len(plan.order))
        # In place: the compiled kernel knows these tensors.
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
        found = self._attention(rows, self._k, self._v, block_mask=self._mask, enable_gqa=self._grouped)
        out.copy_(found[0].transpose(0, 1))

    def rewind(self) -> None:
        self._shared.rewind()
        # Slots are free again that blocks of the mask count as filled, which the tree's plan need not show.
        self._planned = None
        self.plan()

    def kv_bytes(self) -> int:
        return self._shared.kv_bytes()


class FlexAttention(Implementation):
    id = "flex_attention"
    label = "FlexAttention"
    look = Look(
        heading=("Flex", "Attn"),
        meaning="all distinct K and V as one sequence under a mask",
        place=180,
        colour="#AA4499",
        marker=">",
    )
    note = "FlexAttention: all distinct K/V as one sequence, a mask says which row sees which token"
    shares_storage = True
    reads_shared_once = True

    def availability(self, device: str) -> Answer:
        return gpu.gpu_alone(device, "FlexAttention is measured as PyTorch compiles it for GPUs")

    def supports(self, point: Point) -> Answer:
        if point.head_dim < 16:
            return Answer(False, f"FlexAttention takes head sizes from 16 on, not {point.head_dim}")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return FlexSession(inputs, compiled=True)

    def package_version(self) -> str:
        return f"torch {torch.__version__}"
