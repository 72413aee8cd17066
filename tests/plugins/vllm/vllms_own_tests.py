"""Runs vLLM's own tests of its CPU attention against our kernels; a plug-in for pytest.

    PYTHONPATH=. .venv-vllm/bin/python -m pytest -p tests.plugins.vllm.vllms_own_tests test_cpu_attn.py

test_cpu_attn.py is tests/kernels/attention/test_cpu_attn.py of the source distribution of the vLLM that is installed;
pytest has to be installed there, too. The tests call vLLM's operators; these calls get the plug-in's code instead.
Calls for which the plug-in falls back to vLLM's own attention are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from vllm import _custom_ops

from chunkbench.kernels.integers import Ints
from chunkbench.plugins.vllm.steps import Blocks, Steps

_HEAD_DIMS = range(16, 257, 16)
_written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
"""Address of a cache -> the K and V `[slots, kv_heads, head_dim]` that a test wrote to it, in order of the slots."""


def _write(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor,
    slot_mapping: torch.Tensor, isa: str, **other: Any,
) -> None:  # fmt: skip
    if other or key_cache.dtype == torch.uint8:
        pytest.skip("a quantized K/V cache falls back")
    if key_cache.shape[-1] not in _HEAD_DIMS:
        pytest.skip("the head size falls back")
    assert torch.equal(slot_mapping, torch.arange(len(key)))
    _written[key_cache.data_ptr()] = key, value


def _cache(key_cache: torch.Tensor, table: Ints, lengths: Ints) -> tuple[Blocks, torch.Tensor, Ints]:
    """Blocks as an engine would have written them, and the table that fits them.

    The tests fill all slots and then read some of a sequence's last block. An engine writes a token and reads up to it;
    our kernels rely on that. So each sequence gets a last block of its own, with its own tokens only.
    """
    blocks, kv_heads, size, head_dim = key_cache.shape
    shape = Blocks(kv_heads, head_dim, size, key_cache.dtype)
    cache = torch.zeros(blocks + len(table), kv_heads, size, 2 * head_dim, dtype=key_cache.dtype)
    key, value = _written[key_cache.data_ptr()]
    shape.write(cache.data_ptr(), key, value, np.arange(len(key)))
    table = table.copy()
    for row, length in enumerate(lengths.tolist()):
        last, tokens = divmod(length - 1, size)
        first = int(table[row, last]) * size
        table[row, last] = blocks + row
        slots = (blocks + row) * size + np.arange(tokens + 1)
        shape.write(cache.data_ptr(), key[first : first + tokens + 1], value[first : first + tokens + 1], slots)
    return shape, cache, table


def _attend(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, output: torch.Tensor,
    query_start_loc: torch.Tensor, seq_lens: torch.Tensor, scale: float, causal: bool, alibi_slopes: Any,
    sliding_window: Any, block_table: torch.Tensor, softcap: float, scheduler_metadata: Any, s_aux: Any,
    dynamic_causal: Any = None, **other: Any,
) -> None:  # fmt: skip
    fallbacks = {
        "attention that is not causal": not causal or dynamic_causal is not None,
        "ALiBi": alibi_slopes is not None,
        "a sliding window": sliding_window not in (-1, (-1, -1)),
        "soft-capping": bool(softcap),
        "attention sinks": s_aux is not None,
        "a quantized K/V cache": bool(other),
    }
    for name, present in fallbacks.items():
        if present:
            pytest.skip(f"{name} falls back")
    table, lengths, starts = (t.numpy().astype(np.int64) for t in (block_table, seq_lens, query_start_loc))
    shape, cache, table = _cache(key_cache, table, lengths)
    steps = Steps(shape, query.shape[1])
    steps.plan(table, lengths, starts)
    steps.attend(query, output, cache.data_ptr(), scale)


_custom_ops.cpu_attn_reshape_and_cache = _write
_custom_ops.cpu_attention_with_kv_cache = _attend
