"""The points of the kinds of work whose axes are not those of decode attention alone.

They stand beside the table of axes and below the facts and the claims, which know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from chunkbench.experiment.llama import SHAPES, LlamaShape
from chunkbench.experiment.point import AttentionPoint, Point, SessionPoint
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


class LayerPoint(AttentionPoint):
    """The attention of a decoder layer, and the model whose layer it is."""

    model: LlamaShape


class ModulesPoint(ModelPoint, SessionPoint):
    """Modules of a decoder layer: `batch_size` sequences of n_p tokens, which share nothing; n_c calls a round."""

    LEGACY: ClassVar[Mapping[str, Any]] = {"n_s": 0, "prompts": 1, "tree": None, "chunk_size": 64, "block_size": 32}

    n_p: Count

    @property
    def layer(self) -> LayerPoint:
        """What the layer's attention computes."""
        values = {name: value for name, value in self.as_json().items() if name in LayerPoint.model_fields}
        return LayerPoint.model_validate(values)


class RequestPoint(ModelPoint):
    """Requests that arrive one by one; `batch_size` is the most that a step has."""

    n_s: Count | None = None
    prompts: Size = 1
    tree: tuple[TreeNode, ...] | None = None
    rate: Count | None = None


class ServingPoint(RequestPoint):
    """Servers under load: `load` in percent of a system's capacity, `rate` in requests per minute, or `clients`.

    `forced` is the percentage of an answer's bytes that its constraint leaves no choice about.
    """

    LEGACY: ClassVar[Mapping[str, Any]] = {"chunk_size": 64, "block_size": 32}

    model: LlamaShape = SHAPES["small-llama"]
    n_p: Count
    n_c: Count = 64
    load: Count | None = None
    clients: Count | None = None
    forced: Count | None = None


class AnswersPoint(ModelPoint):
    """A context of n_p tokens in caches whose KV heads keep a window, and `batch_size` questions behind it."""

    batch_size: Size = 10
    model: LlamaShape = SHAPES["smollm2-135m"]
    n_p: Count
    window: Count | None = None


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


class ReplayPoint(RequestPoint):
    """Requests through a cache manager. Where `traffic` decides lengths, n_p and n_c are None."""

    model: LlamaShape = SHAPES["llama2-7b"]
    n_p: Count | None = None
    n_c: Count | None = None
    chunk_size: Size = 64
    block_size: Size = 32
    traffic: str | None = None
    memory: Count | None = None
    schedule: str | None = None
    samples: Count | None = None
    beams: Count | None = None

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        values = super().completed(given)
        if given.get("traffic", "fixed") == "fixed":
            values["n_c"] = given.get("n_c", 64)
        return values if "tree" in given else values | {"n_s": values["n_s"] or 0}

    def as_json(self) -> dict[str, Any]:
        # Keys have 0 where traffic decides.
        return {**super().as_json(), "n_p": self.n_p or 0, "n_c": self.n_c or 0}
