"""Latent attention (MLA) on NVIDIA GPUs: the kernels of FlashInfer and FlashMLA. Both take the absorbed form. Blocks of
a common prefix are stored once, and every sequence reads all its blocks through its own table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from chunkbench.baselines import flashinfer_, on_gpu
from chunkbench.baselines.latent import Latent, LatentBlocksSession, LatentInputs, deepseeks_latents
from chunkbench.bench.contract import Answer, Session
from chunkbench.bench.experiment.point import AttentionPoint

_FLASH_MLA = "flash_mla"  # the distribution of DeepSeek's repository, and its module
_FLASH_MLA_BLOCK = 64


class FlashInferLatentSession(LatentBlocksSession):
    """FlashInfer's BatchMLAPagedAttentionWrapper. It takes the latents and the rotary keys as two tensors with strides,
    and so reads both from the one tensor of the blocks."""

    def __init__(self, inputs: LatentInputs, backend: str) -> None:
        super().__init__(inputs, share=True)
        point, rank, dtype = inputs.point, self._kv_rank, self._latents.dtype
        self._parts = self._latents[..., :rank], self._latents[..., rank:]
        rope, causal = self._parts[1].shape[-1], False
        self._form = point.heads, rank, rope, point.block_size, causal, self._scale, dtype, dtype
        self._rows = flashinfer_.host(np.arange(point.batch_size + 1, dtype=np.int32))
        workspace = flashinfer_.workspace(point.device)
        self._wrapper = flashinfer_.library().mla.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
        on_gpu.compile_now(self, inputs)

    def plan(self) -> None:
        tables = [*flashinfer_.pages(self._tables), self._tables.lengths]
        self._wrapper.plan(self._rows, *map(flashinfer_.host, tables), *self._form)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        rank = self._kv_rank
        self._wrapper.run(q[..., :rank], q[..., rank:], *self._parts, out=out)


class FlashInferLatent(Latent):
    compiles = True
    backend = "fa2"

    def availability(self, device: str) -> Answer:
        return flashinfer_.availability(device, self.backend, "flashinfer_mla")

    def supports(self, point: AttentionPoint) -> Answer:
        answer = on_gpu.half_precision(point, "FlashInfer")
        return deepseeks_latents(point, "FlashInfer") if answer.ok else answer

    def package_version(self) -> str:
        return flashinfer_.package_version(self.backend)

    def _session(self, inputs: LatentInputs) -> Session:
        return FlashInferLatentSession(inputs, self.backend)


def flash_mla() -> Any:
    """Import FlashMLA at its first use. Raises ImportError also if another package of this name is installed."""
    import flash_mla
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata  # noqa: F401

    return flash_mla


class FlashMlaSession(LatentBlocksSession):
    """FlashMLA's dense decoding.

    The calls fit its interfaces of 2025 and of 2026. In 2025 `get_mla_metadata` distributed the work by the lengths. In
    2026 it returns an empty object, and the first `flash_mla_with_kvcache` fills it in. Graphs are captured after such
    a call, so they do not contain this work.
    """

    def __init__(self, inputs: LatentInputs) -> None:
        super().__init__(inputs, share=True)
        self._library, self._heads = flash_mla(), inputs.point.heads
        self.plan()

    def plan(self) -> None:
        self._table, self._lengths = self._device_tables(self._latents.device)
        self._work = self._library.get_mla_metadata(self._lengths, self._heads, 1)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        result, _ = self._library.flash_mla_with_kvcache(
            q[:, None], self._latents[:, :, None], self._table, self._lengths, self._kv_rank, *self._work, self._scale
        )
        out.copy_(result[:, 0])


class FlashMla(Latent):
    def availability(self, device: str) -> Answer:
        answer = on_gpu.gpu_library(device, _FLASH_MLA, "build it from the source of FlashMLA", flash_mla)
        if answer.ok and torch.cuda.get_device_capability() != (9, 0):
            return Answer(False, "FlashMLA's kernel for dense decoding runs only on Hopper GPUs", "use flashinfer_mla")
        return answer

    def supports(self, point: AttentionPoint) -> Answer:
        if point.block_size != _FLASH_MLA_BLOCK:
            reason = f"FlashMLA takes blocks of {_FLASH_MLA_BLOCK} tokens, not {point.block_size}"
            return Answer(False, reason, f"set block_size: {_FLASH_MLA_BLOCK}")
        answer = on_gpu.half_precision(point, "FlashMLA")
        return deepseeks_latents(point, "FlashMLA") if answer.ok else answer

    def package_version(self) -> str:
        return on_gpu.named(_FLASH_MLA)

    def _session(self, inputs: LatentInputs) -> Session:
        return FlashMlaSession(inputs)
