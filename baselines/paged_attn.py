"""PagedAttn and PagedAttn*: paged decode attention (PagedAttention) on this project's own kernels, CPU and GPU.

They run the same inner loops over the same layout as `chunk_attn`, block by block through a block table per sequence.
So PagedAttn and ChunkAttn differ only in the algorithm. PagedAttn* is the same kernel with block tables that share the
blocks of a common prefix (section 4.1 of the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from chunkbench.baselines.contract import YES, Answer, Implementation, Inputs, Look, Session
from chunkbench.baselines.hardware import instruction_set
from chunkbench.experiment.point import Point
from chunkbench.kernels import cpu, triton
from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.cpu.decode import PagedNative
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kvcache import Append, BlockTables
from chunkbench.version import __version__

if TYPE_CHECKING:
    from chunkbench.kernels.triton.decode import PagedTriton


class PagedSession(Session):
    def __init__(self, inputs: Inputs, share: bool) -> None:
        point = inputs.point
        self._size = point.block_size
        self._store, self._kernel = _kernel(point)
        self._tables = BlockTables(self._size, share, max_tokens=inputs.capacity)
        joined = [self._tables.join(prompt) for prompt in inputs.prompts]
        # The tables give out the lowest free id first, so a store of this size holds all completion tokens too.
        self._store.grow(self._tables.pool.in_use + point.batch_size * -(-point.n_c // self._size))
        for row, (join, prompt) in enumerate(zip(joined, inputs.prompts, strict=True)):
            k, v = inputs.keys_values(row, join.cached, len(prompt))
            self._store.fill(join.slots[:: self._size] // self._size, k, v)
        self._prompts = [(join.sequence, len(prompt)) for join, prompt in zip(joined, inputs.prompts, strict=True)]

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        slots = self._tables.append(token_ids)
        blocks, offsets = slots // self._size, slots % self._size
        self._store.append(Append(blocks, offsets, blocks[offsets == 0], every_row=True), k, v)

    def plan(self) -> None:
        self._kernel.plan(self._tables.table, self._tables.lengths)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        self._kernel.decode(q, out)

    def rewind(self) -> None:
        lengths = self._tables.lengths.tolist()
        for row, (sequence, length) in enumerate(self._prompts):
            last = (length - 1) // self._size  # the prompt's last block
            kept, held = length - last * self._size, min(self._size, lengths[row] - last * self._size)
            if kept < held:
                self._store.cut(int(self._tables.table[row, last]), kept, held)
            self._tables.truncate(sequence, length)

    def kv_bytes(self) -> int:
        return self._tables.pool.in_use * self._store.chunk_bytes

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
