"""Runs vLLM's own tests of its CPU attention against our kernels; a plug-in for pytest.

    PYTHONPATH=. .venv-vllm/bin/python -m pytest -p tests.integrations.vllm.vllms_own_tests VLLM/tests/kernels/attention/test_cpu_attn.py

VLLM is a checkout of vLLM's sources of the version that is installed. The tests call vLLM's operators; these calls get
the plug-in's code instead. Calls for which the plug-in falls back to vLLM's own attention are skipped.
"""  # noqa: E501

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from vllm import _custom_ops

from chunkbench.integrations.vllm.steps import Blocks, Steps

_KEPT = 16 * torch.arange(1, 17)
"""Head sizes of our kernels."""


def _blocks(key_cache: torch.Tensor) -> Blocks:
    """key_cache `[blocks, kv_heads, tokens, head_dim]`: the first half of vLLM's packed blocks."""
    _, kv_heads, tokens, head_dim = key_cache.shape
    return Blocks(kv_heads, head_dim, tokens, key_cache.dtype)


def _write(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor,
    slot_mapping: torch.Tensor, isa: str, **other: Any,
) -> None:  # fmt: skip
    if other or key_cache.dtype == torch.uint8:
        pytest.skip("a quantized K/V cache falls back")
    if key_cache.shape[-1] not in _KEPT:
        pytest.skip("the head size falls back")
    _blocks(key_cache).write(key_cache.data_ptr(), key, value, slot_mapping.numpy().astype(np.int64))


def _attend(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, output: torch.Tensor,
    query_start_loc: torch.Tensor, seq_lens: torch.Tensor, scale: float, causal: bool, alibi_slopes: Any,
    sliding_window: Any, block_table: torch.Tensor, softcap: float, scheduler_metadata: Any, s_aux: Any, **other: Any,
) -> None:  # fmt: skip
    fallbacks = {
        "attention that is not causal": not causal,
        "ALiBi": alibi_slopes is not None,
        "a sliding window": tuple(sliding_window) != (-1, -1),
        "soft-capping": bool(softcap),
        "attention sinks": s_aux is not None,
        "a quantized K/V cache": bool(other),
    }
    for name, present in fallbacks.items():
        if present:
            pytest.skip(f"{name} falls back")
    steps = Steps(_blocks(key_cache), query.shape[1])
    integers = (tensor.numpy().astype(np.int64) for tensor in (block_table, seq_lens, query_start_loc))
    steps.plan(*integers)
    steps.attend(query, output, key_cache.data_ptr(), scale)


_custom_ops.cpu_attn_reshape_and_cache = _write
_custom_ops.cpu_attention_with_kv_cache = _attend
