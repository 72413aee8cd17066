"""Shapes of latent attention (MLA, DeepSeek-V2, arXiv 2405.04434), and the bytes and FLOPs of its two forms.

A token stores a latent vector c `[kv_rank]` and a rotary key k_r `[rope]`, both for all heads. Head i computes
attention in one of two forms with the same result:

- absorbed: the key is [c, k_r] and the value is c. The query is [W_uk_i^T q_nope_i, q_r_i], and the output is W_uv_i
  times the result. All heads read the same K.
- expanded (*naive*): the key is [W_uk_i c, k_r] `[nope + rope]` and the value is W_uv_i c `[v]`. Each head has its own
  K and V.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

QueryForm = Literal["expanded", "absorbed", "both"]
"""Which queries attention takes: those of the expanded form, of the absorbed form, or both."""
ProjectionsTime = Literal["apart", "timed"]
"""Whether timed calls contain the products with W_uk and W_uv. `apart`: attention alone."""


_Size = Annotated[int, Field(gt=0, lt=2**31)]


class LatentShape(BaseModel):
    """Dimensions of latent attention. Hugging Face's names: kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim,
    v_head_dim."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_rank: _Size
    rope: _Size
    nope: _Size
    v: _Size
    heads: Annotated[_Size | None, Field(exclude=True)] = None
    """Query heads of a model that is given by name; None if the point says how many there are."""

    def __str__(self) -> str:
        return f"{self.kv_rank}+{self.rope}:{self.nope}:{self.v}"

    @property
    def width(self) -> int:
        """Numbers of a token, which are its key in the absorbed form."""
        return self.kv_rank + self.rope

    @property
    def key_dim(self) -> int:
        """Dimension of a head's query and key in the expanded form. Both forms scale scores by its inverse root."""
        return self.nope + self.rope

    def numbers(self, heads: int, expanded: bool) -> int:
        """Numbers that a token stores: 576 of the latent form, or 320 for each head, with DeepSeek's dimensions."""
        return heads * (self.key_dim + self.v) if expanded else self.width

    def flops(self, expanded: bool) -> int:
        """Floating-point operations of attention for a query head and a token: 2,176 of the absorbed form, 640 of the
        expanded one, with DeepSeek's dimensions."""
        return 2 * (self.key_dim + self.v) if expanded else 2 * (self.width + self.kv_rank)

    def projection_flops(self) -> int:
        """Floating-point operations that the absorbed form needs beside attention, for a query head."""
        return 2 * self.kv_rank * (self.nope + self.v)

    def break_even(self, element_bytes: int, flops_per_s: float, bytes_per_s: float) -> float:
        """Number of sequences from which the expanded form of a shared token takes less time than the absorbed one.

        The expanded form reads `numbers` of all heads from memory, however many sequences share them. The absorbed form
        computes `flops` for each sequence. With DeepSeek's dimensions and 2 bytes: 0.294 F/B (TyphoonMLA, arXiv
        2509.21081, with rates in place of a roofline's corner). It does not depend on the number of heads.
        """
        return self.numbers(1, True) * element_bytes * flops_per_s / (self.flops(False) * bytes_per_s)


def why_not_latent(shape: LatentShape | None, form: QueryForm | None) -> str:
    """Why an implementation that takes latent queries in this form, or ordinary ones if it is None, cannot compute a
    point with this shape of latent attention, or with ordinary attention; empty if it can."""
    if shape is None:
        return "computes latent attention; the point has none (axis latent)" if form is not None else ""
    return "computes attention of heads with K and V of their own, not latent attention" if form is None else ""


_DEEPSEEK = {"kv_rank": 512, "rope": 64, "nope": 128, "v": 128}
LATENTS: Mapping[str, LatentShape] = {
    "deepseek-v2-lite": LatentShape(**_DEEPSEEK, heads=16),
    "kimi-k2": LatentShape(**_DEEPSEEK, heads=64),
    "deepseek-v3": LatentShape(**_DEEPSEEK, heads=128),
}
"""Models with latent attention."""
