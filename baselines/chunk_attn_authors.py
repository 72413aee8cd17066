"""The CPU kernel that the ChunkAttention authors published (github.com/microsoft/chunk-attention), float32 only.

`scripts/build_chunk_attn_authors.py` builds it from a checkout as the extension module `chunk_attn_c`. The module
shares whole chunks in a prefix tree, and computes each product with MKL. The adapter works around three limits of the
module: its rows follow the order of its tree, it cannot cut a sequence back to its prompt, and it writes beyond its
memory when its cache is full.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chunkbench.baselines.chunk_attn import chunks_needed
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint

MODULE = "chunk_attn_c"
BUILD = "python scripts/build_chunk_attn_authors.py CHECKOUT, see its --help"


class ChunkAttnAuthorsSession(Session):
    """A session over one cache of the module. Python cannot access the tensors of this cache."""

    def __init__(self, inputs: Inputs) -> None:
        point = inputs.point
        self._chunk_bytes = point.chunk_size * point.token_bytes
        # Every sequence gets a last chunk of its own with room for a token. A full cache writes beyond its memory.
        chunks = chunks_needed(inputs, point.chunk_size) + 2 * point.batch_size + 1
        megabytes = -(-chunks * self._chunk_bytes // 2**20)

        def fresh() -> tuple[Any, list[int]]:
            return _fill(inputs, megabytes)

        self._fresh = fresh  # not the inputs themselves: they hold tensors that are not K and V of this session
        self._cache, order = fresh()
        self._in_order = order == sorted(order)
        self._order = np.array(order)  # no tensor, for the same reason
        self._appended = False

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._appended = True
        if not self._in_order:
            index = torch.from_numpy(self._order)
            token_ids, k, v = [token_ids[row] for row in self._order], k[index], v[index]
        self._cache.append_token(list(token_ids), k, v)

    def plan(self) -> None:
        """If the module has new chunks, tell the module to list its chunks again."""
        self._cache.refresh_kernel_context()

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        if self._in_order:
            out.copy_(self._cache.forward(q))
        else:
            index = torch.from_numpy(self._order)
            out[index] = self._cache.forward(q[index])

    def rewind(self) -> None:
        """Fill a new cache, because the module cannot remove the last tokens of a sequence."""
        if self._appended:
            del self._cache  # first: two caches may not fit into memory
            self._cache, _ = self._fresh()
            self._appended = False

    def kv_bytes(self) -> int:
        return _count(self._cache.get_trie()) * self._chunk_bytes


def _fill(inputs: Inputs, megabytes: int) -> tuple[Any, list[int]]:
    """Returns a new cache with all prompts, and the rows in the order in which the module keeps its sequences."""
    import chunk_attn_c

    point = inputs.point
    share, least_rows = True, 1
    cache = chunk_attn_c.Attention(
        point.heads, point.head_dim, point.chunk_size, megabytes, share, least_rows, torch.float32, torch.device("cpu")
    )
    order: list[int] = []
    for row, prompt in enumerate(inputs.prompts):
        k, v = inputs.keys_values(row, 0, len(prompt))
        order.insert(cache.add_seq(list(prompt), k, v), row)
    return cache, order


def _count(chunk: Any) -> int:
    """Number of chunks below a chunk of the module's tree."""
    return sum(1 + _count(child) for child in chunk.children)


class ChunkAttnAuthors(Implementation):
    shares_storage = True
    reads_shared_once = True

    def availability(self, device: str) -> Answer:
        if device != "cpu":
            return Answer(False, "the build of the authors' kernel is for CPUs")
        if importlib.util.find_spec(MODULE) is None:
            return Answer(False, "the authors' kernel is not built", BUILD)
        try:
            importlib.import_module(MODULE)
        except ImportError as error:
            return Answer(False, f"the authors' kernel does not load: {error}", BUILD)
        return YES

    def supports(self, point: AttentionPoint) -> Answer:
        if point.dtype != "float32":
            return Answer(False, "the authors' CPU kernel computes in float32 only")
        if point.kv_heads != point.heads:
            return Answer(False, "the authors' kernel has no grouped heads")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return ChunkAttnAuthorsSession(inputs)

    def package_version(self) -> str | None:
        spec = importlib.util.find_spec(MODULE)
        if spec is None or spec.origin is None:
            return None
        try:
            facts = json.loads(Path(spec.origin).with_suffix(".json").read_text())
            return f"chunk-attention {facts['commit'][:12]}, MKL {facts['mkl']}"
        except (OSError, ValueError, KeyError):
            return "chunk-attention, unknown build"
