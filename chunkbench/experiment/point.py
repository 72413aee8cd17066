"""A point: one combination of axes, resolved to plain values, and the forest of prompts that it describes."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from chunkbench.experiment.axes import AXES
from chunkbench.experiment.llama import LlamaShape
from chunkbench.experiment.terms import Cache, Device, Dtype, Mode, Protocol, TreeNode


class Segment(NamedTuple):
    """Consecutive prompt tokens. Sequences that share these tokens share the id."""

    id: int
    tokens: int


class AxisFields(BaseModel):
    """The fields that a point and its facts have in common; `chunkbench.experiment.axes` explains each axis.

    `n_p` is a token count, or `(low, high)` for ragged prompts (lengths drawn from the seed, both ends included).
    `n_s` and `prompts` describe a forest of `prompts` roots with `n_s` tokens each (sequence k uses root
    `k mod prompts`). `tree` describes any forest; `n_s` is then None. `model` is the shape of the model whose layer the
    point measures, or that servers run; None if there is none. `load` (percent of a system's capacity) and `rate`
    (requests per minute) are how fast requests arrive at servers. The last five belong to replays; where their
    `traffic` decides lengths, `n_p` and `n_c` are 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_p: int | tuple[int, int]
    n_s: int | None
    n_c: int
    batch_size: int
    heads: int
    kv_heads: int
    head_dim: int
    chunk_size: int
    block_size: int
    prompts: int = 1
    tree: tuple[TreeNode, ...] | None = None
    model: LlamaShape | None = None
    dtype: Dtype
    device: Device
    load: int | None = None
    rate: int | None = None
    traffic: str | None = None
    memory: int | None = None
    schedule: str | None = None
    samples: int | None = None
    beams: int | None = None


class Point(AxisFields):
    """One combination of axes. `threads` None means the machine's default."""

    threads: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The values for case keys and workers; axes that were added later are left out while they are None."""
        unset = {axis.name for axis in AXES.values() if axis.later and getattr(self, axis.name) is None}
        return self.model_dump(mode="json", exclude=unset)

    @property
    def brief(self) -> str:
        """Short text of the axes that differ between the points of most experiments."""
        n_p = str(self.n_p) if isinstance(self.n_p, int) else f"{self.n_p[0]}..{self.n_p[1]}"
        requests = self.load is not None or self.rate is not None or self.traffic is not None
        model = str(self.model) if self.model is not None and not requests else ""
        sharing = "tree" if self.tree is not None else model or f"n_s={self.n_s}"
        words = [self.traffic if self.traffic and not self.n_p else f"n_p={n_p}", sharing, f"b={self.batch_size}"]
        usual = {"kv_heads": self.heads, "prompts": 1, "threads": None}
        usual |= dict.fromkeys(("load", "rate", "memory", "schedule", "samples", "beams"))
        words += [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        return " ".join(words)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of K, V, q or out."""
        return element_bytes(self.dtype)

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token, all KV heads."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes

    def prompt_lengths(self, seed: int) -> list[int]:
        """Prompt length of every sequence."""
        if isinstance(self.n_p, int):
            return [self.n_p] * self.batch_size
        low, high = self.n_p
        rng = random.Random(f"lengths {seed}")
        return [rng.randint(low, high) for _ in range(self.batch_size)]

    def paths(self, seed: int) -> list[list[Segment]]:
        """Every sequence's prompt as a path of segments; empty segments are left out.

        Paths are in the order in which sequences are added. The last segment of a path is private unless the whole
        prompt is shared.
        """
        ids = iter(range(1 << 30))
        if self.tree is None:
            roots = [Segment(next(ids), self.n_s or 0) for _ in range(self.prompts)]
            shared = [[roots[k % self.prompts]] for k in range(self.batch_size)]
        else:
            shared = [list(path) for node in self.tree for path in walk_tree(node, (), ids)]
        paths = []
        for path, length in zip(shared, self.prompt_lengths(seed), strict=True):
            private = length - sum(segment.tokens for segment in path)
            whole = [*path, Segment(next(ids), private)]
            paths.append([segment for segment in whole if segment.tokens > 0])
        return paths

    def unique_prompt_tokens(self, seed: int) -> int:
        """Number of distinct token prefixes among the prompts."""
        return sum({s.id: s.tokens for path in self.paths(seed) for s in path}.values())


def element_bytes(dtype: Dtype) -> int:
    """Bytes of one element."""
    return 4 if dtype == "float32" else 2


def passes(points: Iterable[Point]) -> list[tuple[Point, ...]]:
    """Groups of points that differ only in n_c, shortest first: a pass over the longest point has all their steps."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(repr(point.model_copy(update={"n_c": 0})), []).append(point)
    return [tuple(sorted(group, key=lambda point: point.n_c)) for group in groups.values()]


@dataclass(frozen=True)
class Case:
    """A point, an implementation and the way it is timed."""

    point: Point
    implementation: str
    protocol: Protocol
    cache: Cache
    mode: Mode

    @property
    def key(self) -> str:
        """SHA-256 of exactly the resolved values; it does not depend on environment, seed or budget."""
        values = self.point.as_json() | {
            "implementation": self.implementation,
            "protocol": self.protocol,
            "cache": self.cache,
            "mode": self.mode,
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def walk_tree(node: TreeNode, above: tuple[Segment, ...], ids: Iterator[int]) -> Iterator[Sequence[Segment]]:
    """Paths of all sequences below a node, depth first."""
    tokens, children = node
    path = (*above, Segment(next(ids), tokens))
    if isinstance(children, int):
        for _ in range(children):
            yield path
    else:
        for child in children:
            yield from walk_tree(child, path, ids)
