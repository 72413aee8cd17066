"""Points and cases. A point is one combination of axes, resolved to plain values. A case is an implementation at a
point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from chunkbench.bench.experiment.axes import AXES
from chunkbench.bench.experiment.forest import PromptSegment, prompt_lengths, prompt_paths
from chunkbench.bench.experiment.terms import Cache, Compensation, Count, Device, Dtype, Mode, Protocol, Size, TreeNode
from chunkbench.bench.experiment.tree import has_lengths, lengths_in, sequences_in
from chunkbench.bench.experiment.values import LengthRange, Share, show_value
from chunkbench.draft import CHAIN, parents_of, seen_pairs
from chunkbench.kv_dtype import KvDtype, kv_bytes
from chunkbench.latent import LatentShape, ProjectionsTime
from chunkbench.llama import LlamaShape

AS_BEFORE: Mapping[str, Any] = {"kv_dtype": "same", "query_rows": 1, "draft": CHAIN}
"""Values of axes that stand for what was there before the axis. Keys and captions leave them out."""
_IN_EVERY_KEY = ("n_s", "tree", "threads")
"""Axes that every case key contains, even if their value is None."""
_SELDOM_SWEPT = ("n_c", "tree", "heads", "head_dim", "chunk_size", "block_size", "dtype")


class Point(BaseModel):
    """One combination of axes. Each field is an axis (`chunkbench.bench.experiment.axes`) and states its default.

    If `threads` is None, the machine's default is used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Dtype
    device: Device
    batch_size: Size = 32
    threads: Size | None = None

    @classmethod
    def axes(cls) -> tuple[str, ...]:
        """The names of the axes that this class has, in the order of `AXES`."""
        return tuple(name for name in AXES if name in cls.model_fields)

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Add the defaults of the axes that `given` lacks. The dtype is None if `given` has none."""
        fields = {name: cls.model_fields[name] for name in cls.axes()}
        defaults = {name: field.default for name, field in fields.items() if not field.is_required()}
        values = {"dtype": None, **defaults, **given}
        if isinstance(values.get("n_p"), LengthRange):
            values["n_p"] = (values["n_p"].low, values["n_p"].high)
        n_s = values.get("n_s")
        if isinstance(n_s, Share) and (shared := n_s.tokens(values.get("n_p"))) is not None:
            values["n_s"] = int(shared)  # `prompt_conflicts` refuses numbers that are not whole
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """A point from the values of `as_json`."""
        return cls.model_validate({name: value for name, value in values.items() if name in cls.model_fields})

    def as_json(self) -> dict[str, Any]:
        """The values for case keys and workers, in JSON types.

        The form never changes, because keys of recorded runs depend on it. An axis that is added later is left out
        while its value is None, or the one in `AS_BEFORE`.
        """
        values = self.model_dump(mode="json")
        return {name: value for name, value in values.items() if value != AS_BEFORE.get(name) or name in _IN_EVERY_KEY}

    @property
    def usually_swept(self) -> dict[str, Any]:
        """The axes that differ between the points of most experiments."""
        found = {}
        for name in self.axes():
            value, field = getattr(self, name), type(self).model_fields[name]
            usual = value == (getattr(self, "heads", None) if name == "kv_heads" else field.default)
            usual = usual or (name == "kv_heads" and getattr(self, "latent", None) is not None)
            if name == "n_s" and getattr(self, "tree", None) is not None:
                found["tree"] = getattr(self, "tree", None)
            elif name == "batch_size" or (name not in _SELDOM_SWEPT and value is not None and not usual):
                found[name] = value
        return found

    @property
    def brief(self) -> str:
        """Short text of the axes that usually differ (`usually_swept`)."""
        names = {"batch_size": "b"}
        return " ".join(f"{names.get(name, name)}={show_value(value)}" for name, value in self.usually_swept.items())

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of K, V, q or out."""
        return element_bytes(self.dtype)


class SessionPoint(Point):
    """A point that a worker measures in sessions, for n_c steps."""

    n_c: Count = 64


class AttentionPoint(SessionPoint):
    """Sequences that decode together. Their prompts may share prefixes.

    `n_p`: tokens of each prompt. A pair `(low, high)` means prompts of different lengths, which are drawn from the seed
    or listed in `tree`.

    Without `tree`, there are `prompts` shared prefixes of `n_s` tokens each, and sequence k has prefix `k mod prompts`.
    `tree` describes any forest of prefixes; `n_s` is then None.
    """

    n_p: Count | tuple[Count, Count]
    n_s: Count | None
    prompts: Size = 1
    tree: tuple[TreeNode, ...] | None = None
    heads: Size = 32
    kv_heads: Size
    head_dim: Size = 128
    retrieval: Count | None = None
    window: Count | None = None
    kv_share: Count | None = None
    compensation: Compensation | None = None
    chunk_size: Size = 64
    block_size: Size = 32
    kv_dtype: KvDtype = "same"
    latent: LatentShape | None = None
    projections: ProjectionsTime | None = None
    query_rows: Size = 1
    draft: str = CHAIN

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        values = super().completed(given)
        values["kv_heads"] = given.get("kv_heads", values["heads"])
        if (latent := given.get("latent")) is not None:  # all heads read the same latents
            heads = given.get("heads", latent.heads or values["heads"])
            latent = latent.model_copy(update={"heads": None})
            values |= {"latent": latent, "heads": heads, "kv_heads": 1, "head_dim": latent.width}
        if values.get("projections") == "apart":
            values["projections"] = None
        if (parents := parents_of(values["draft"])) is not None:
            values["query_rows"] = len(parents)
        if "tree" in given:
            values |= {"n_s": None, "batch_size": given.get("batch_size", sequences_in(given["tree"]))}
        return values

    @property
    def rows(self) -> int:
        """Query rows of all sequences together."""
        return self.batch_size * self.query_rows

    def pairs(self, tokens: int) -> int:
        """Number of pairs of a query row and a token that it reads, if all sequences together have `tokens` tokens."""
        unseen = self.query_rows**2 - seen_pairs(self.query_rows, self.draft)
        return tokens * self.query_rows - self.batch_size * unseen

    @property
    def given_token_bytes(self) -> int:
        """Bytes of K and V of one token, all KV heads, before they are stored."""
        if self.latent is not None:
            return self.latent.width * self.element_bytes
        return self.kv_heads * kv_bytes(self.head_dim, self.element_bytes, "same")

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token, all KV heads, as `kv_dtype` stores them; with `latent`, of its latents."""
        if self.latent is not None:
            return self.given_token_bytes
        return self.kv_heads * kv_bytes(self.head_dim, self.element_bytes, self.kv_dtype)

    def prompt_lengths(self, seed: int) -> list[int]:
        """Tokens of each sequence's prompt."""
        if self.tree is not None and has_lengths(self.tree):
            return lengths_in(self.tree)
        return prompt_lengths(self.n_p, self.batch_size, seed)

    def paths(self, seed: int) -> list[list[PromptSegment]]:
        """The prompt of each sequence as a path of segments (`prompt_paths`)."""
        return prompt_paths(self.prompt_lengths(seed), self.n_s, self.prompts, self.tree)

    def unique_prompt_tokens(self, seed: int) -> int:
        """Number of distinct token prefixes among the prompts."""
        return sum({s.id: s.tokens for path in self.paths(seed) for s in path}.values())


PointT = TypeVar("PointT", bound=Point, default=Any)


def element_bytes(dtype: Dtype) -> int:
    return 4 if dtype == "float32" else 2


def passes(points: Iterable[AttentionPoint]) -> list[tuple[AttentionPoint, ...]]:
    """Group the points that differ only in n_c, and sort each group by n_c.

    One pass over the longest point measures the whole group, because it takes the steps of all its points.
    """
    groups: dict[str, list[AttentionPoint]] = {}
    for point in points:
        groups.setdefault(repr(point.model_copy(update={"n_c": 0})), []).append(point)
    return [tuple(sorted(group, key=lambda point: point.n_c)) for group in groups.values()]


@dataclass(frozen=True)
class Case(Generic[PointT]):
    """A point, an implementation, and the way of timing. Kinds of work without timing keep the defaults."""

    point: PointT
    implementation: str
    protocol: Protocol = "strict"
    cache: Cache = "cold"
    mode: Mode = "eager"

    @property
    def key(self) -> str:
        """SHA-256 of the resolved values. The environment, the seed and the budget do not change it."""
        values = self.point.as_json() | {
            "implementation": self.implementation,
            "protocol": self.protocol,
            "cache": self.cache,
            "mode": self.mode,
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class ModelPoint(Point):
    """A point with a model. The model decides the number and the size of heads."""

    LEGACY: ClassVar[Mapping[str, Any]] = {}
    """Axes that are part of the case keys but not fields of the point. They keep keys of recorded runs valid."""

    model: LlamaShape
    kv_dtype: KvDtype = "same"

    def as_json(self) -> dict[str, Any]:
        heads = {
            "heads": self.model.num_attention_heads,
            "kv_heads": self.model.num_key_value_heads,
            "head_dim": self.model.head_dim,
        }
        return {**self.LEGACY, **heads, **super().as_json()}

    @property
    def layer_token_bytes(self) -> int:
        """Bytes of K and V of one token in one layer, all KV heads, as `kv_dtype` stores them."""
        return self.model.num_key_value_heads * kv_bytes(self.model.head_dim, self.element_bytes, self.kv_dtype)


class RequestPoint(ModelPoint):
    """Requests that arrive one by one. `batch_size` is the largest number of sequences in a step."""

    n_s: Count | None = None
    prompts: Size = 1
    tree: tuple[TreeNode, ...] | None = None
    rate: Count | None = None
