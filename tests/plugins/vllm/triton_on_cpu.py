"""Puts the GPU backend into vLLM on a CPU: our kernels in Triton's interpreter, vLLM's own ones replaced.

vLLM switches its Triton kernels off where there is no GPU. What they would compute (writes to the cache, prompts) is
computed slowly here, in the layout that the backend gets. So vLLM's scheduler, cache manager, runner and classes are
real, and the decoded tokens are ours.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from vllm.v1.attention.backends import triton_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from tests.kernels.triton.interpreter import mend_interpreter


def register() -> None:
    """Put the backend in the place of the one for CPUs."""
    mend_interpreter()
    triton_attn.unified_attention = _attend
    triton_attn.triton_reshape_and_cache_flash = _write
    register_backend(AttentionBackendEnum.CPU_ATTN, "chunkbench.plugins.vllm.gpu.ChunkTritonBackend")


def _write(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: torch.Tensor, *_: Any) -> None:
    size = key_cache.shape[1]
    kept = slots >= 0
    blocks, places = slots[kept] // size, slots[kept] % size
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache[blocks, places] = new[: len(slots)][kept]


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor, softmax_scale: float, block_table: torch.Tensor, **_: Any,
) -> None:  # fmt: skip
    """q `[rows, heads, d]`, k and v `[blocks, tokens, kv_heads, d]`; the rows of a sequence are its last tokens."""
    starts = cu_seqlens_q.tolist()
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        if start == end:
            continue
        length = int(seqused_k[number])
        held = block_table[number, : -(-length // k.shape[1])].long()
        group = q.shape[1] // k.shape[2]
        keys, values = (cache[held].flatten(0, 1)[:length].float().repeat_interleave(group, 1) for cache in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q[start:end].float(), keys) * softmax_scale
        seen = torch.ones(end - start, length, dtype=torch.bool).tril(length - (end - start))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out[start:end] = torch.einsum("hnm,mhd->nhd", weights, values).to(out.dtype).view_as(out[start:end])
