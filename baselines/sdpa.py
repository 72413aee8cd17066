"""Backends of PyTorch's scaled_dot_product_attention: memory-efficient attention and cuDNN attention.

Its FlashAttention backend, one of the paper's baselines, is in `flash_attn.py`.
"""

from __future__ import annotations

import torch
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_efficient_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from chunkbench.baselines import gpu
from chunkbench.baselines.contract import YES, Answer, Implementation, Inputs, Session, Style
from chunkbench.baselines.dense import MaskedSession
from chunkbench.experiment.point import AttentionPoint


class SdpaSession(MaskedSession):
    """A session with one fixed backend; PyTorch cannot choose another."""

    def __init__(self, inputs: Inputs, backend: SDPBackend) -> None:
        super().__init__(inputs)
        self._backend = backend

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        b, h_kv, _, d = self._k.shape
        with sdpa_kernel(self._backend):
            # Query heads that share a KV head become query positions of one head: same result, K and V are read once.
            attention = scaled_dot_product_attention(
                q.view(b, h_kv, -1, d),
                self._k[:, :, : self._longest],
                self._v[:, :, : self._longest],
                attn_mask=self._mask,
            )
        out.view(attention.shape).copy_(attention)


class Sdpa(Implementation):
    """One backend."""

    backend: SDPBackend

    def availability(self, device: str) -> Answer:
        return gpu.gpu_alone(device, f"PyTorch has {self.label} only on GPUs")

    def prepare(self, inputs: Inputs) -> Session:
        return SdpaSession(inputs, self.backend)

    def package_version(self) -> str:
        return f"torch {torch.__version__}"


def runs_on_gpu(point: AttentionPoint) -> bool:
    """Whether PyTorch can be asked what it accepts for a point."""
    return point.device == "cuda" and torch.cuda.is_available()


def small_call(point: AttentionPoint) -> SDPAParams:
    """A small call with the point's dtype and head shape, to ask PyTorch whether a backend accepts it."""
    dtype = getattr(torch, point.dtype)
    q = torch.empty((1, point.kv_heads, point.heads // point.kv_heads, point.head_dim), dtype=dtype, device="cuda")
    k = torch.empty((1, point.kv_heads, 32, point.head_dim), dtype=dtype, device="cuda")
    return SDPAParams(q, k, k, None, 0.0, False, False)


class SdpaEfficient(Sdpa):
    id = "sdpa_efficient"
    label = "SDPA memory-efficient"
    style = Style(heading=("SDPA", "effic."), column_order=130, colour="#999933", marker="v")
    backend = SDPBackend.EFFICIENT_ATTENTION

    def supports(self, point: AttentionPoint) -> Answer:
        if runs_on_gpu(point) and not can_use_efficient_attention(small_call(point)):
            reason = f"PyTorch's memory-efficient attention refuses {point.dtype} heads of {point.head_dim} here"
            return Answer(False, reason)
        return YES


class Cudnn(Sdpa):
    id = "cudnn"
    label = "SDPA cuDNN"
    style = Style(heading=("SDPA", "cuDNN"), column_order=140, colour="#117733", marker="h")
    backend = SDPBackend.CUDNN_ATTENTION

    def supports(self, point: AttentionPoint) -> Answer:
        if not isinstance(point.n_p, int):
            return Answer(False, "ragged prompts need a mask, and this adapter passes none to cuDNN")
        if runs_on_gpu(point) and not can_use_cudnn_attention(small_call(point)):
            return Answer(False, f"PyTorch's cuDNN attention refuses {point.dtype} heads of {point.head_dim} here")
        return gpu.half_precision(point, "cuDNN")

    def package_version(self) -> str:
        cudnn = torch.backends.cudnn.version()
        return f"torch {torch.__version__}" + (f", cuDNN {cudnn}" if cudnn else "")
