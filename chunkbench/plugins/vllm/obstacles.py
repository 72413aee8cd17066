"""What keeps our kernels from computing a layer of vLLM."""

from __future__ import annotations

from typing import Any

_EVERYTHING = (None, -1, (-1, -1))
"""What vLLM's implementations keep where attention has no sliding window."""


def obstacle(attention: Any, quantized: bool) -> str:
    """Why our kernels cannot compute a layer; empty if nothing that all of them lack is asked for.

    attention: vLLM's implementation of the layer; quantized: whether K and V are kept in fewer bits.
    """
    if attention.attn_type != "decoder":
        return f"attention of type {attention.attn_type}"
    found = {
        "a sliding window": attention.sliding_window not in _EVERYTHING,
        "soft-capping of scores": bool(attention.logits_soft_cap),
        "ALiBi": attention.alibi_slopes is not None,
        "attention sinks": attention.sinks is not None,
        "a quantized K/V cache": quantized,
        "K and V of another layer": attention.kv_sharing_target_layer_name is not None,
    }
    return next((name for name, present in found.items() if present), "")
