"""Caches whose KV heads keep different parts of a sequence: RazorAttention, DuoAttention and StreamingLLM.

All methods run ChunkAttn's kernels over two stores (`chunkbench/attention/heads.py`). `head_methods.METHODS` says how
the methods differ. All sequences of a point have the same length, so their windows begin at the same position. Window
heads may therefore also drop chunks of shared prefixes (`compress: all`). Each sequence still has exactly the result
that it would have alone.
"""

from __future__ import annotations

import torch

from chunkbench.attention import Partition
from chunkbench.attention.windows import HeadPolicy
from chunkbench.baselines.chunk_attn import ChunkAttnSession
from chunkbench.baselines.hardware import OwnKernels
from chunkbench.baselines.head_methods import METHODS
from chunkbench.bench.contract import YES, Answer, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.kernels import triton
from chunkbench.kv_dtype import KV_DTYPES


class HeadCacheSession(ChunkAttnSession):
    """A session over a cache with window heads. `rewind` adds all sequences again, because window heads cannot restore
    the tokens that they lost."""

    def __init__(self, inputs: Inputs, policy: HeadPolicy, share: bool) -> None:
        self._inputs = inputs
        partition: Partition = "two-phase" if share else "sequence-first"
        super().__init__(inputs, inputs.point.chunk_size, partition, "auto", share, policy)

    def _add_prompts(self, inputs: Inputs) -> None:
        super()._add_prompts(inputs)
        self.attention.compress()

    def rewind(self) -> None:
        for sequence in self.attention.sequences:
            self.attention.remove_sequence(sequence)
        self._add_prompts(self._inputs)


class HeadCaches(OwnKernels):
    shares_storage = True
    reads_shared_once = True
    kv_dtypes = KV_DTYPES

    def supports(self, point: AttentionPoint) -> Answer:
        obstacle = METHODS[self.id].obstacle(point)
        if not obstacle and point.device == "cuda":
            sizes = point.heads, point.kv_heads, point.head_dim, point.chunk_size
            obstacle = triton.why_not(getattr(torch, point.dtype), *sizes)
        return Answer(False, obstacle) if obstacle else YES

    def prepare(self, inputs: Inputs) -> Session:
        method = METHODS[self.id]
        return HeadCacheSession(inputs, method.policy(inputs.point), method.share)
