"""vLLM's attention backend for CPUs, with our kernels.

The K and V of each layer stay in the blocks of vLLM's cache manager. Inside a block they have the layout of our
kernels, because nothing else reads the block on a CPU. vLLM's block tables say which blocks sequences share.

vLLM's own backend computes layers that our kernels do not support (sliding windows, soft-capping, sinks, ALiBi,
quantized caches other than fp8_e4m3, encoders). It then also computes all layers that share a block table with such a
layer.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata, MultipleOf
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from chunkbench.kv_dtype import KvDtype
from chunkbench.plugins.vllm.plugin import drafting_obstacles, obstacle
from chunkbench.plugins.vllm.steps import Blocks, Steps

logger = init_logger(f"vllm.{__name__}")
_HEAD_DIMS = range(16, 257, 16)
_CACHE_DTYPES = ("auto", "float16", "bfloat16", "float32", "fp8", "fp8_e4m3")
"""Values of vLLM's `kv_cache_dtype` that our kernels read. vLLM's fp8 is fp8_e4m3."""


class ChunkBackend(CPUAttentionBackend):
    """vLLM's CPU backend, with another implementation and another builder of metadata."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def get_impl_cls() -> type[ChunkImpl]:
        return ChunkImpl

    @staticmethod
    def get_builder_cls() -> type[ChunkMetadataBuilder]:
        return ChunkMetadataBuilder


class ChunkMetadataBuilder(CPUAttentionMetadataBuilder):
    """Finds the blocks that sequences share, once per step for all layers with the same block table."""

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = get_layers_from_vllm_config(vllm_config, Attention, layer_names).values()
        impls = [cast(ChunkImpl, layer.impl) for layer in layers]
        obstacles = sorted({impl.obstacle for impl in impls if impl.obstacle})
        obstacles += drafting_obstacles(vllm_config.speculative_config)
        if len({impl.kv_cache_dtype for impl in impls}) > 1:
            obstacles.append("layers whose K and V have different types")
        if obstacles:
            logger.warning("chunkbench: vLLM's own attention computes %d layers: %s", len(impls), "; ".join(obstacles))
            self._steps = None
            return
        logger.info("chunkbench: two-phase partition computes %d layers", len(impls))
        kv_dtype: KvDtype = "fp8" if impls[0].is_fp8_kv_cache else "same"
        blocks = Blocks(self.num_kv_heads, self.head_dim, self.block_size, self.dtype, kv_dtype)
        self._steps = Steps(blocks, self.num_heads)
        for impl in impls:
            impl.steps = self._steps

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        if self._steps is None:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError("chunkbench: this attention is not causal; take the plug-in out of VLLM_PLUGINS")
        requests = common.num_reqs
        self._steps.plan(
            common.block_table_tensor[:requests].numpy(),
            common.seq_lens[:requests].numpy().astype(np.int64),
            common.query_start_loc[: requests + 1].numpy().astype(np.int64),
        )
        return CPUAttentionMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            scheduler_metadata=None,
        )


class ChunkImpl(CPUAttentionBackendImpl):
    """The attention of one layer on a CPU."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.obstacle = obstacle(self, self.kv_cache_dtype not in _CACHE_DTYPES)
        """Why our kernels cannot compute this layer; empty if they can."""
        if not self.obstacle and self.head_size not in _HEAD_DIMS:
            self.obstacle = f"head size {self.head_size}"
        self.steps: Steps | None = None
        """What writes and reads the layer's blocks; None if vLLM's own attention computes the layer. The builder
        decides for all layers with the same block table."""
        self._scales: torch.Tensor | None = None
        """Scales of K and of V of each KV head, if the cache is in fp8."""

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.steps is None or attn_metadata is None:
            scales = output_scale, output_block_scale
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *scales)
            return output
        rows = attn_metadata.num_actual_tokens
        out = output.view(-1, self.num_heads, self.head_size)[:rows]
        self.steps.attend(query[:rows], out, kv_cache.data_ptr(), self.scale, self._scales_of(layer))
        return output

    def _scales_of(self, layer: Any) -> int:
        """Address of the scales of fp8; 0 if the cache is not in fp8. vLLM has one scale for K and one for V: those of
        the checkpoint (`k_scale`, `v_scale`), or 1."""
        if not self.is_fp8_kv_cache:
            return 0
        if self._scales is None:
            both = torch.tensor([[layer._k_scale_float], [layer._v_scale_float]], dtype=torch.float32)
            self._scales = both.expand(2, self.num_kv_heads).contiguous()
        return self._scales.data_ptr()

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if self.steps is None:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        if not kv_cache.is_contiguous():
            raise NotImplementedError("chunkbench: the blocks of the K/V cache are not contiguous")
        slots = slot_mapping.numpy()
        scales = self._scales_of(layer)
        self.steps.write(kv_cache.data_ptr(), key[: len(slots)], value[: len(slots)], slots, scales)
