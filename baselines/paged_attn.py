"""PagedAttn and PagedAttn*: paged decode attention (PagedAttention) on this project's own kernels, CPU and GPU.

They run the same inner loops over the same layout as `chunk_attn`, block by block through a block table per sequence.
So PagedAttn and ChunkAttn differ only in the algorithm. PagedAttn* is the same kernel with block tables that share the
blocks of a common prefix (section 4.1 of the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from chunkbench.baselines.block_session import BlockSession
from chunkbench.baselines.contract import YES, Answer, Implementation, Inputs, Look, Session
from chunkbench.baselines.hardware import instruction_set
from chunkbench.experiment.point import Point
from chunkbench.kernels import cpu, triton
from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.cpu.decode import PagedNative
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kvcache import Append
from chunkbench.kvcache.integers import Ints
from chunkbench.version import __version__

if TYPE_CHECKING:
    from chunkbench.kernels.triton.decode import PagedTriton


class PagedSession(BlockSession):
    def __init__(self, inputs: Inputs, share: bool) -> None:
        super().__init__(inputs, share, inputs.point.block_size)
        self._store, self._kernel = _kernel(inputs.point)
        self._store.grow(self._blocks)
        self._fill(inputs)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._write(self._tables.append(token_ids), k, v, every_row=True)

    def _write(self, slots: Ints, k: torch.Tensor, v: torch.Tensor, every_row: bool = False) -> None:
        blocks, offsets = slots // self._block_size, slots % self._block_size
        self._store.append(Append(blocks, offsets, blocks[offsets == 0], every_row), k, v)

    def plan(self) -> None:
        self._kernel.plan(self._tables.table, self._tables.lengths)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        self._kernel.decode(q, out)

    def rewind(self) -> None:
        lengths = self._tables.lengths.tolist()
        for row, length in enumerate(self._prompts):
            last = (length - 1) // self._block_size  # the prompt's last block
            kept, held = length - last * self._block_size, min(self._block_size, lengths[row] - last * self._block_size)
            if kept < held:
                self._store.cut(int(self._tables.table[row, last]), kept, held)
        super().rewind()

    def work_items(self) -> int:
        return self._kernel.work_items


def _kernel(point: Point) -> tuple[ChunkStore, PagedNative | PagedTriton]:
    shape = point.block_size, point.kv_heads, point.head_dim, getattr(torch, point.dtype)
    if point.device == "cpu":
        packed = PackedStore(*shape)
        return packed, PagedNative(packed, point.heads)
    from chunkbench.kernels.triton.decode import PagedTriton
    from chunkbench.kernels.triton.store import TritonStore

    store = TritonStore(*shape, point.device)
    return store, PagedTriton(store, point.heads)


class PagedAttn(Implementation):
    id = "paged_attn"
    label = "PagedAttn"
    look = Look(heading=("Paged", "Attn"), place=230, colour="#0072B2", marker="s")
    share = False
    _device = "cpu"

    def availability(self, device: str) -> Answer:
        self._device = device
        missing = cpu.why_missing() if device == "cpu" else triton.why_unavailable(torch.device(device))
        return Answer(False, missing) if missing else YES

    def supports(self, point: Point) -> Answer:
        if point.device == "cuda":
            dtype = getattr(torch, point.dtype)
            unfit = triton.why_not(dtype, point.heads, point.kv_heads, point.head_dim, point.block_size)
            return Answer(False, f"the kernel cannot compute this: {unfit}") if unfit else YES
        if point.block_size % 16:
            return Answer(False, f"the kernel takes blocks of a multiple of 16 tokens, not {point.block_size}")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return PagedSession(inputs, self.share)

    def package_version(self) -> str:
        return f"chunkbench {__version__}"

    def isa(self) -> str | None:
        return instruction_set(self._device)


class PagedAttnStar(PagedAttn):
    id = "paged_attn_star"
    label = "PagedAttn*"
    look = Look(
        heading=("Paged", "Attn*"),
        meaning="PagedAttn whose block tables share the prompt's blocks",
        place=240,
        colour="#0072B2",
        marker="D",
        line="dashed",
    )
    share = True
    shares_storage = True
