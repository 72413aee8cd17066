"""Backends of PyTorch's scaled_dot_product_attention: memory-efficient attention and cuDNN attention.

The FlashAttention backend, one of the paper's baselines, is in `flash_attn.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_efficient_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from chunkbench.baselines import on_gpu
from chunkbench.baselines.dense import MaskedSession
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.draft import Drafts


class SdpaSession(MaskedSession):
    """A session in which PyTorch has to use one given backend."""

    def __init__(self, inputs: Inputs, backend: SDPBackend) -> None:
        super().__init__(inputs)
        self._backend = backend

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        b, h_kv, _, d = self._k.shape
        by_head = b, self._query_rows, h_kv, self._group, d
        with sdpa_kernel(self._backend):
            # Query heads that share a KV head become query positions of one head: same result, K and V are read once.
            attention = scaled_dot_product_attention(
                q.view(by_head).transpose(1, 2).reshape(b, h_kv, -1, d),
                self._k[:, :, : self._longest],
                self._v[:, :, : self._longest],
                attn_mask=self._mask,
            )
        out.view(by_head).transpose(1, 2).copy_(attention.view(b, h_kv, self._query_rows, self._group, d))


class Sdpa(Implementation):
    """An implementation that uses one backend of PyTorch's scaled_dot_product_attention."""

    backend: SDPBackend
    drafts: Drafts = "trees"

    def availability(self, device: str) -> Answer:
        return on_gpu.gpu_alone(device, f"PyTorch has {self.label} only on GPUs")

    def prepare(self, inputs: Inputs) -> Session:
        return SdpaSession(inputs, self.backend)

    def package_version(self) -> str:
        return f"torch {torch.__version__}"


def accepted(point: AttentionPoint, accepts: Callable[[SDPAParams], bool], name: str) -> Answer:
    """Whether PyTorch's backend `name` accepts a point on this GPU. `accepts` is called for a small tensor with the
    point's dtype and head shape. The answer is yes on a machine without a GPU."""
    if point.device != "cuda" or not torch.cuda.is_available():
        return YES
    dtype = getattr(torch, point.dtype)
    q = torch.empty((1, point.kv_heads, point.heads // point.kv_heads, point.head_dim), dtype=dtype, device="cuda")
    k = torch.empty((1, point.kv_heads, 32, point.head_dim), dtype=dtype, device="cuda")
    if accepts(SDPAParams(q, k, k, None, 0.0, False, False)):
        return YES
    return Answer(False, f"PyTorch's {name} refuses {point.dtype} heads of {point.head_dim} here")


class SdpaEfficient(Sdpa):
    backend = SDPBackend.EFFICIENT_ATTENTION

    def supports(self, point: AttentionPoint) -> Answer:
        return accepted(point, can_use_efficient_attention, "memory-efficient attention")


class Cudnn(Sdpa):
    backend = SDPBackend.CUDNN_ATTENTION
    drafts: Drafts = "none"

    def supports(self, point: AttentionPoint) -> Answer:
        if not isinstance(point.n_p, int):
            return Answer(False, "ragged prompts need a mask, and this adapter passes none to cuDNN")
        answer = accepted(point, can_use_cudnn_attention, "cuDNN attention")
        return on_gpu.half_precision(point, "cuDNN") if answer.ok else answer

    def package_version(self) -> str:
        cudnn = torch.backends.cudnn.version()
        return f"torch {torch.__version__}" + (f", cuDNN {cudnn}" if cudnn else "")
