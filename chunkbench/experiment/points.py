"""Points whose model decides their heads: of one decoder layer, and of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chunkbench.experiment.llama import LlamaShape
from chunkbench.experiment.point import Point
from chunkbench.experiment.terms import Count, Size, TreeNode


class ModelPoint(Point):
    """A point whose model decides its heads."""

    LEGACY: ClassVar[Mapping[str, Any]] = {}
    """Axes that case keys have although the kind does not have them. Keys of recorded runs stay valid with them."""

    model: LlamaShape

    def as_json(self) -> dict[str, Any]:
        heads = {
            "heads": self.model.num_attention_heads,
            "kv_heads": self.model.num_key_value_heads,
            "head_dim": self.model.head_dim,
        }
        return {**self.LEGACY, **heads, **super().as_json()}

    @property
    def layer_token_bytes(self) -> int:
        """Bytes of K and V of one token in one layer, all KV heads."""
        return 2 * self.model.num_key_value_heads * self.model.head_dim * self.element_bytes


class RequestPoint(ModelPoint):
    """Requests that arrive one by one; `batch_size` is the most that a step has."""

    n_s: Count | None = None
    prompts: Size = 1
    tree: tuple[TreeNode, ...] | None = None
    rate: Count | None = None
