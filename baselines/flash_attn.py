"""FlashAttn: the FlashAttention backend of PyTorch's scaled_dot_product_attention (paper, section 4.1)."""

from __future__ import annotations

from torch.backends.cuda import can_use_flash_attention
from torch.nn.attention import SDPBackend

from chunkbench.baselines.sdpa import Sdpa, accepted
from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.point import AttentionPoint


class FlashAttn(Sdpa):
    backend = SDPBackend.FLASH_ATTENTION

    def availability(self, device: str) -> Answer:
        return YES

    def supports(self, point: AttentionPoint) -> Answer:
        if point.device == "cuda" and point.dtype == "float32":
            return Answer(False, "PyTorch's FlashAttention takes float16 or bfloat16 on CUDA", "set dtype: float16")
        if point.device == "cuda" and (not isinstance(point.n_p, int) or point.query_rows > 1):
            what = "several query rows" if point.query_rows > 1 else "ragged prompts"
            return Answer(False, f"{what} need a mask, and PyTorch's FlashAttention takes none on CUDA")
        return accepted(point, can_use_flash_attention, "FlashAttention")
