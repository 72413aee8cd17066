"""PagedAttn, PagedAttn* and PagedAttn, whole: paged decode attention (PagedAttention) on this project's own kernels.

They run the same inner loops over the same layout as `chunk_attn`: a block is a chunk, and every sequence reads all of
its blocks by itself. So PagedAttn and ChunkAttn differ only in the algorithm. PagedAttn* is the same kernel over blocks
that sequences with a common prefix share (section 4.1 of the paper).
"""

from __future__ import annotations

import torch

from chunkbench.attention import Kernel
from chunkbench.baselines.chunk_attn import ChunkAttnSession
from chunkbench.baselines.hardware import instruction_set
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session, Style
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.kernels import cpu, triton
from chunkbench.version import __version__


class PagedAttn(Implementation):
    id = "paged_attn"
    label = "PagedAttn"
    style = Style(heading=("Paged", "Attn"), column_order=230, colour="#0072B2", marker="s")
    share = False
    _device = "cpu"

    def availability(self, device: str) -> Answer:
        self._device = device
        missing = cpu.why_missing() if device == "cpu" else triton.why_unavailable(torch.device(device))
        return Answer(False, missing) if missing else YES

    def supports(self, point: AttentionPoint) -> Answer:
        if point.device == "cuda":
            dtype = getattr(torch, point.dtype)
            unfit = triton.why_not(dtype, point.heads, point.kv_heads, point.head_dim, point.block_size)
            return Answer(False, f"the kernel cannot compute this: {unfit}") if unfit else YES
        if point.block_size % 16:
            return Answer(False, f"the kernel takes blocks of a multiple of 16 tokens, not {point.block_size}")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        kernel: Kernel = "native" if inputs.point.device == "cpu" else "triton"
        return ChunkAttnSession(inputs, self._block_size(inputs), "sequence-first", kernel, self.share)

    def _block_size(self, inputs: Inputs) -> int:
        return inputs.point.block_size

    def package_version(self) -> str:
        return f"chunkbench {__version__}"

    def isa(self) -> str | None:
        return instruction_set(self._device)


class PagedAttnStar(PagedAttn):
    id = "paged_attn_star"
    label = "PagedAttn*"
    style = Style(
        heading=("Paged", "Attn*"),
        meaning="PagedAttn whose block tables share the prompt's blocks",
        column_order=240,
        colour=PagedAttn.style.colour,
        marker="D",
        line="dashed",
    )
    share = True
    shares_storage = True


class PagedAttnWhole(PagedAttn):
    id = "paged_attn_whole"
    label = "PagedAttn, whole"
    style = Style(
        heading=("Paged", "whole"),
        meaning="PagedAttn with one block for each sequence: contiguous K/V",
        column_order=235,
        colour=PagedAttn.style.colour,
        marker="o",
        line="dotted",
    )

    def supports(self, point: AttentionPoint) -> Answer:
        # Kernels on a GPU hold a block in registers.
        return YES if point.device == "cpu" else Answer(False, "only the CPU kernel takes blocks of any length")

    def _block_size(self, inputs: Inputs) -> int:
        return -(-inputs.capacity // 16) * 16
