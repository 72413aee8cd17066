"""The points of attention over several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from chunkbench.experiment.point import Point
from chunkbench.experiment.terms import Count, Size


class RingPoint(Point):
    """A context of n_p tokens over several ranks: the prefill of one sequence, or a decode step of `batch_size`.

    Sequences that decode share their first n_s tokens, which are split over the ranks. `link` in bytes per second.
    `threads` are those of one rank.
    """

    batch_size: Size = 1
    n_p: Size
    n_s: Count | None = None
    heads: Size = 32
    kv_heads: Size
    head_dim: Size = 128
    ranks: Size = 2
    phase: Literal["prefill", "decode"] = "prefill"
    mask: Literal["causal", "full"] | None = None
    link: Count | None = None

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        values = super().completed(given)
        values["kv_heads"] = given.get("kv_heads", values["heads"])
        if values["phase"] == "decode":
            return values | {"n_s": values["n_p"] if values["n_s"] is None else values["n_s"]}
        return values | {"mask": given.get("mask", "causal")}

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token, all KV heads."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes
