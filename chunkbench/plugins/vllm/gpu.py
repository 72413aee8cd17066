"""vLLM's Triton attention for NVIDIA GPUs, with our kernels for decoded tokens.

K and V stay in vLLM's layout. vLLM's own kernels write K and V, and compute the prompts. vLLM also computes steps that
our kernels do not support, without a copy of K and V. Our kernels only compute decoding, which reads the shared
prefixes at every step.

This backend has neither run on a GPU nor been measured. It is tested in Triton's interpreter, with vLLM's own classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.utils.torch_utils import is_quantized_kv_cache
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadata,
    TritonAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from chunkbench.kernels import triton
from chunkbench.plugins.vllm.gpu_steps import DecodeSteps
from chunkbench.plugins.vllm.plugin import drafting_obstacles, obstacle

logger = init_logger(f"vllm.{__name__}")


class ChunkTritonBackend(TritonAttentionBackend):
    """vLLM's Triton backend, with another implementation and another builder of metadata."""

    @staticmethod
    def get_impl_cls() -> type[ChunkTritonImpl]:
        return ChunkTritonImpl

    @staticmethod
    def get_builder_cls() -> type[ChunkTritonMetadataBuilder]:
        return ChunkTritonMetadataBuilder


@dataclass
class ChunkTritonMetadata(TritonAttentionMetadata):
    """What the layers need to compute one step. Our kernels compute rows `0 .. decoding - 1` of the step; vLLM computes
    the rows after them."""

    steps: DecodeSteps | None = None
    """The object that has planned the decoding rows."""
    decoding: int = 0
    rest: TritonAttentionMetadata | None = None
    """Metadata of the rows after the decoding rows; None if there are none."""


class ChunkTritonMetadataBuilder(TritonAttentionMetadataBuilder):
    """Finds the blocks that decoding sequences share, once per step for all layers with the same block table."""

    # A captured graph can have only decoding rows, because the number of rows of prompts is unknown at capture.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.supports_draft_decode_metadata_update = False  # plans are made on the host
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)  # decoding rows and drafts come first
        self._layers = list(get_layers_from_vllm_config(vllm_config, Attention, layer_names).values())
        self._steps: DecodeSteps | None = None
        self._captured: int | None = None
        """The generation of the steps that CUDA graphs were captured with."""
        obstacles = sorted({cast(ChunkTritonImpl, layer.impl).obstacle for layer in self._layers} - {""})
        dtype = vllm_config.model_config.dtype
        shape = self.num_heads_q, self.num_heads_kv, self.headdim, kv_cache_spec.block_size
        unsupported = triton.why_not(dtype, *shape)
        obstacles += [unsupported] if unsupported else []
        self._drafts = vllm_config.speculative_config is not None
        obstacles += drafting_obstacles(vllm_config.speculative_config)
        obstacles += ["a window that begins after the prompt"] if self.rswa_window is not None else []
        self._ours = not obstacles
        if obstacles:
            logger.warning("chunkbench: vLLM computes %d layers itself: %s", len(self._layers), "; ".join(obstacles))
        else:
            logger.info("chunkbench: two-phase partition decodes in %d layers", len(self._layers))

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> TritonAttentionMetadata:
        metadata = super().build_for_cudagraph_capture(common_attn_metadata)
        self._captured = self._steps.generation if self._steps is not None else None
        return metadata

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> TritonAttentionMetadata:
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        common = common_attn_metadata
        # Without speculation the bound is the length itself. With it, only the device knows how many drafted tokens of
        # the step before were accepted.
        known = common.seq_lens.cpu() if self._drafts else common.seq_lens_cpu_upper_bound
        if not self._ours or common.causal is not True or common.mm_req_doc_ranges is not None or known is None:
            return metadata
        lengths = known[: common.num_reqs].numpy().astype(np.int64)
        counts = np.diff(common.query_start_loc_cpu[: common.num_reqs + 1].numpy())
        most = self.reorder_batch_threshold if self._drafts else 1
        others = np.flatnonzero((counts < 1) | (counts > most) | (lengths == 0))  # prompts, and rows of padding
        decoding = int(others[0]) if len(others) else len(counts)
        steps = self._steps or self._make_steps()
        # vLLM keeps tables on the device, and only the whole table shows which blocks came or went.
        table = common.block_table_tensor[:decoding].cpu().numpy()
        steps.plan(table, lengths[:decoding], counts[:decoding] if self._drafts else None)
        if self._captured not in (None, steps.generation):
            raise RuntimeError("chunkbench: a step needs more than CUDA graphs were captured for; use --enforce-eager")
        rest = None
        if counts[decoding:].any():
            rest = super().build(common_prefix_len, _behind(common, decoding), fast_build)
        rows = int(counts[:decoding].sum())
        return ChunkTritonMetadata(**vars(metadata), steps=steps, decoding=rows, rest=rest)

    def _make_steps(self) -> DecodeSteps:
        """Make `DecodeSteps` at the first step, because the layers have no K/V cache before."""
        caches = [layer.kv_cache for layer in self._layers]
        if len({cache.stride() for cache in caches}) > 1:
            raise NotImplementedError(
                "chunkbench: layers' K/V caches have different strides; take it out of VLLM_PLUGINS"
            )
        rows = self.vllm_config.scheduler_config.max_num_seqs * self.reorder_batch_threshold
        self._steps = DecodeSteps(caches[0], self.num_heads_q, rows, len(caches[0]), drafted=self._drafts)
        return self._steps


class ChunkTritonImpl(TritonAttentionImpl):
    """The attention of one layer on a GPU."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.obstacle = obstacle(self, is_quantized_kv_cache(self.kv_cache_dtype))
        """Why our kernels cannot compute this layer; empty if they can."""
        if not self.obstacle and self.chunk_lookback != -1:
            self.obstacle = "attention to a few chunks before"

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        return False

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: TritonAttentionMetadata,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not isinstance(attn_metadata, ChunkTritonMetadata):  # vLLM computes the whole step
            scales = output_scale, output_block_scale
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *scales)
            return output
        metadata, steps = attn_metadata, attn_metadata.steps
        assert steps is not None
        # Without prompts, rows of padding stay as they are: a captured graph has the largest number of rows.
        rows = metadata.num_actual_tokens if metadata.rest is None else metadata.decoding
        if rows:
            shape = -1, self.num_heads, self.head_size
            steps.attend(query[:rows].view(shape), output[:rows].view(shape), kv_cache, self.scale)
        if metadata.rest is not None:
            super().forward(layer, query[rows:], key[rows:], value[rows:], kv_cache, metadata.rest, output[rows:])
        return output


def _behind(common: CommonAttentionMetadata, decoding: int) -> CommonAttentionMetadata:
    """The requests of a step after the first `decoding` ones, as a separate step."""
    rows = int(common.query_start_loc_cpu[decoding])
    return common.replace(
        query_start_loc=common.query_start_loc[decoding:] - rows,
        query_start_loc_cpu=common.query_start_loc_cpu[decoding:] - rows,
        seq_lens=common.seq_lens[decoding:],
        num_reqs=common.num_reqs - decoding,
        num_actual_tokens=common.num_actual_tokens - rows,
        block_table_tensor=common.block_table_tensor[decoding:],
        slot_mapping=common.slot_mapping[rows:],
    )
