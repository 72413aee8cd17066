"""FlashAttention-3 from the package fa3-fwd, a build of its forward kernels: only bfloat16, no paged K/V."""

from __future__ import annotations

from typing import Any

import torch

from chunkbench.baselines import on_gpu
from chunkbench.baselines.flash_attn_package import ContiguousSession
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint


def library() -> Any:
    """Import the package at its first use."""
    import fa3_fwd_interface

    return fa3_fwd_interface


class FlashAttn3(Implementation):
    def availability(self, device: str) -> Answer:
        answer = on_gpu.gpu_library(device, "fa3-fwd", on_gpu.extra("fa3"), library)
        if answer.ok and torch.cuda.get_device_capability()[0] not in (8, 9):
            return Answer(False, "fa3-fwd is built for Ampere, Ada and Hopper GPUs")
        return answer

    def supports(self, point: AttentionPoint) -> Answer:
        if point.dtype != "bfloat16":
            return Answer(False, f"fa3-fwd is built for bfloat16, not for {point.dtype}", "set dtype: bfloat16")
        if point.head_dim > 256 or point.head_dim % 8:
            return Answer(False, f"FlashAttention-3 takes head sizes up to 256 in steps of 8, not {point.head_dim}")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        # If it gets lengths, the library launches an extra kernel that plans with them.
        return ContiguousSession(inputs, library().flash_attn_with_kvcache, equal_lengths=False)

    def package_version(self) -> str:
        return on_gpu.named("fa3-fwd")
