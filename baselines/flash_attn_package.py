"""The package flash-attn (FlashAttention-2). Its call for decoding, `flash_attn_with_kvcache`, reads dense or paged
K/V.

The paged form stores the blocks of a common prefix once for all sequences. Each sequence still reads them separately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chunkbench.baselines import on_gpu
from chunkbench.baselines.block_session import PoolSession
from chunkbench.baselines.dense import DenseSession
from chunkbench.bench.contract import Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint

_PAGE = 256  # the library's pages hold a multiple of this many tokens


def library() -> Any:
    """Import the package at its first use."""
    import flash_attn

    return flash_attn


class ContiguousSession(DenseSession):
    """A session with contiguous caches for `flash_attn_with_kvcache` of FlashAttention-2 or -3.

    The library's function always gets the lengths of the sequences if they differ. `equal_lengths`: whether the
    function gets equal lengths, too.
    """

    def __init__(self, inputs: Inputs, attention: Callable[..., torch.Tensor], equal_lengths: bool) -> None:
        super().__init__(inputs, token_major=True)
        self._attention = attention
        self._pass_lengths = equal_lengths or self._ragged

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        # Cut to the longest sequence, because the library derives the number of context splits from the cache's size.
        k, v = self._k[:, : self._longest], self._v[:, : self._longest]
        lengths = self._lengths if self._pass_lengths else None
        out.copy_(self._attention(q[:, None], k, v, cache_seqlens=lengths)[:, 0])


class PagedSession(PoolSession):
    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs, inputs.point.block_size)
        self._attention = library().flash_attn_with_kvcache
        self.plan()

    def plan(self) -> None:
        self._table, self._lengths = self._device_tables(self._k.device)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        result = self._attention(q[:, None], self._k, self._v, cache_seqlens=self._lengths, block_table=self._table)
        out.copy_(result[:, 0])


class FlashAttnPackage(Implementation):
    def availability(self, device: str) -> Answer:
        return on_gpu.gpu_library(device, "flash-attn", on_gpu.extra("flash-attn"), library)

    def supports(self, point: AttentionPoint) -> Answer:
        if point.head_dim > 256 or point.head_dim % 8:
            return Answer(False, f"flash-attn takes head sizes up to 256 in steps of 8, not {point.head_dim}")
        return on_gpu.half_precision(point, "flash-attn")

    def prepare(self, inputs: Inputs) -> Session:
        return ContiguousSession(inputs, library().flash_attn_with_kvcache, equal_lengths=True)

    def package_version(self) -> str:
        return on_gpu.named("flash-attn")


class FlashAttnPackagePaged(FlashAttnPackage):
    shares_storage = True

    def supports(self, point: AttentionPoint) -> Answer:
        if point.block_size % _PAGE:
            reason = f"flash-attn takes pages of a multiple of {_PAGE} tokens, not {point.block_size}"
            return Answer(False, reason, f"set block_size: {_PAGE}")
        return super().supports(point)

    def prepare(self, inputs: Inputs) -> Session:
        return PagedSession(inputs)
