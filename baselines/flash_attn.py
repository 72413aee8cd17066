"""FlashAttn: the FlashAttention backend of PyTorch's scaled_dot_product_attention (paper, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from chunkbench.baselines.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.baselines.dense import DenseCache
from chunkbench.experiment.point import Point


class FlashAttnSession(Session):
    def __init__(self, inputs: Inputs) -> None:
        self._cache = DenseCache(inputs)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.append(k, v)

    def plan(self) -> None:
        self._cache.plan()

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        cache = self._cache
        b, h_kv, _, d = cache.k.shape
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            # Heads that share a KV head are query positions of one head: the same sums, and K and V are read once.
            attention = scaled_dot_product_attention(
                q.view(b, h_kv, -1, d),
                cache.k[:, :, : cache.longest],
                cache.v[:, :, : cache.longest],
                attn_mask=cache.mask,
            )
        out.view(attention.shape).copy_(attention)

    def rewind(self) -> None:
        self._cache.rewind()

    def kv_bytes(self) -> int:
        return self._cache.nbytes()


class FlashAttn(Implementation):
    id = "flash_attn"
    label = "FlashAttn"
    note = (
        "FlashAttn is the FlashAttention backend of PyTorch's SDPA, as in the paper; it is shaped for prefill: with "
        "one query per sequence it uses a fraction of what it was built for"
    )

    def availability(self, device: str) -> Answer:
        return YES

    def supports(self, point: Point) -> Answer:
        if point.device == "cuda" and point.dtype == "float32":
            return Answer(False, "PyTorch's FlashAttention takes float16 or bfloat16 on CUDA", "set dtype: float16")
        if point.device == "cuda" and not isinstance(point.n_p, int):
            return Answer(False, "PyTorch's FlashAttention takes no mask on CUDA, which ragged prompts need")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return FlashAttnSession(inputs)

    def package_version(self) -> str:
        return f"torch {torch.__version__}"
