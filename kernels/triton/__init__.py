"""GPU kernels in Triton. On a CPU the kernels run in Triton's interpreter (TRITON_INTERPRET=1), for tests, not for
timing."""

from __future__ import annotations

import importlib.util
import os

import torch

from chunkbench.latent import LatentShape

HEAD_DIMS = (64, 128, 256)
KV_RANKS = (*HEAD_DIMS, 512)
MAX_GROUP = 64
"""Largest number of query heads per KV head, which is also the number of rows of the large tile."""


def capability(device: torch.device | None = None) -> int:
    """Compute capability of a GPU (90 for 9.0), by default of the current one."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def why_unavailable(device: torch.device) -> str:
    """Why the kernels cannot run on a device at all, with the remedy; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed; PyTorch for CUDA includes it, else: pip install triton"
    if device.type == "cuda" and not torch.cuda.is_available():
        return "PyTorch sees no NVIDIA GPU here; `chunkbench doctor` says why"
    if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
        return f"it runs on PyTorch's current device, not on {device}; torch.cuda.set_device({device.index}) changes it"
    if device.type == "cuda":
        current = capability(device)
        return "" if current >= 80 else f"it needs a GPU of compute capability 8.0 or later, not {current / 10}"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and device.type == "cpu"
    return "" if interpreted else f"it runs on an NVIDIA GPU, not on {device}"


def why_not_latent(dtype: torch.dtype, shape: LatentShape, chunk_size: int) -> str:
    """Why the kernels do not support latent attention of a shape; empty if they do."""
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it supports float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    fits = shape.kv_rank in KV_RANKS and shape.rope in (16, 32, 64) and shape.nope == shape.v in HEAD_DIMS
    if not fits:
        return (
            "it supports latents with kv_rank 64, 128, 256 or 512, rope 16, 32 or 64, and nope and v both 64, 128 or "
            f"256, not {shape}"
        )
    if chunk_size < 16 or chunk_size & (chunk_size - 1):
        return f"it supports chunks of a power of two from 16 tokens on, not {chunk_size}"
    return ""


def why_not(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, chunk_size: int) -> str:
    """Why the kernels do not support a shape; empty if they do."""
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it supports float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if head_dim not in HEAD_DIMS:
        return f"it supports head dimensions of 64, 128 and 256, not {head_dim}"
    if chunk_size < 16 or chunk_size & (chunk_size - 1):
        return f"it supports chunks of a power of two from 16 tokens on, not {chunk_size}"
    if heads > MAX_GROUP * kv_heads:
        return f"it supports at most {MAX_GROUP} query heads per KV head, not {heads // kv_heads}"
    return ""
