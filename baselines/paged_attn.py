"""PagedAttn, PagedAttn* and "PagedAttn, whole": paged decode attention on this project's own kernels.

They run the same inner loops over the same layout as `chunk_attn`: a block is a chunk, and every sequence reads all of
its blocks by itself. So PagedAttn and ChunkAttn differ only in the algorithm. PagedAttn* is the same kernel over blocks
that sequences with a common prefix share (section 4.1 of the paper).
"""

from __future__ import annotations

import torch

from chunkbench.attention import Kernel
from chunkbench.baselines.chunk_attn import ChunkAttnSession
from chunkbench.baselines.hardware import OwnKernels
from chunkbench.bench.contract import YES, Answer, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.kernels import triton
from chunkbench.kv_dtype import KV_DTYPES


class PagedAttn(OwnKernels):
    whole = False
    """Whether a sequence has only one block, so that its K and V are contiguous."""
    kv_dtypes = KV_DTYPES
    drafts = "trees"

    def supports(self, point: AttentionPoint) -> Answer:
        if point.device == "cuda":
            if self.whole:  # kernels on a GPU hold a block in registers
                return Answer(False, "only the CPU kernel takes blocks of any length")
            dtype = getattr(torch, point.dtype)
            unfit = triton.why_not(dtype, point.heads, point.kv_heads, point.head_dim, point.block_size)
            return Answer(False, f"the kernel cannot compute this: {unfit}") if unfit else YES
        if point.block_size % 16 and not self.whole:
            return Answer(False, f"the kernel takes blocks of a multiple of 16 tokens, not {point.block_size}")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        kernel: Kernel = "native" if inputs.point.device == "cpu" else "triton"
        block_size = -(-inputs.capacity // 16) * 16 if self.whole else inputs.point.block_size
        return ChunkAttnSession(inputs, block_size, "sequence-first", kernel, self.shares_storage)
