"""ChunkAttn: prefix-aware KV cache with the two-phase partition kernel (section 3 of the paper), and its ablations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from chunkbench.attention import ChunkAttention
from chunkbench.baselines.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.kvcache import PrefixTree


class ChunkAttnSession(Session):
    def __init__(self, inputs: Inputs, partition: Literal["two-phase", "sequence-first"]) -> None:
        point = inputs.point
        self._attention = ChunkAttention(
            heads=point.heads,
            head_dim=point.head_dim,
            kv_heads=point.kv_heads,
            chunk_size=point.chunk_size,
            dtype=getattr(torch, point.dtype),
            device=point.device,
            partition=partition,
        )
        self._attention.reserve(_chunks(inputs) * point.chunk_size)
        self._sequences = []
        for row, prompt in enumerate(inputs.prompts):
            cached = self._attention.cached_tokens(prompt)
            k, v = inputs.keys_values(row, cached, len(prompt))
            self._sequences.append((self._attention.add_sequence(prompt, k, v), len(prompt)))

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._attention.append(token_ids, k, v)

    def plan(self) -> None:
        self._attention.plan()

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        self._attention.decode(q, out)

    def rewind(self) -> None:
        for sequence, length in self._sequences:
            self._attention.truncate(sequence, length)

    def kv_bytes(self) -> int:
        return self._attention.kv_bytes

    def work_items(self) -> int:
        return self._attention.work_items


def _chunks(inputs: Inputs) -> int:
    """Chunks that the prompts and all completion tokens take, so that the store allocates them once and exactly."""
    point = inputs.point
    forest = PrefixTree(point.chunk_size)
    for prompt in inputs.prompts:
        forest.join(prompt)
    return forest.pool.in_use + point.batch_size * -(-point.n_c // point.chunk_size)


class ChunkAttn(Implementation):
    id = "chunk_attn"
    label = "ChunkAttn"
    note = "ChunkAttn runs its PyTorch kernel in this version"
    shares_storage = True
    reads_shared_once = True

    def availability(self, device: str) -> Answer:
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return ChunkAttnSession(inputs, "two-phase")

    def package_version(self) -> str:
        return f"torch {torch.__version__}"


class ChunkAttnTorch(ChunkAttn):
    id = "chunk_attn_torch"
    label = "ChunkAttn (PyTorch)"
    note = ""


class ChunkAttnNoTpp(ChunkAttn):
    id = "chunk_attn_no_tpp"
    label = "ChunkAttn, no TPP"
    note = (
        "ChunkAttn, no TPP: the same cache, but every sequence reads its shared chunks for itself (sequence first only)"
    )
    reads_shared_once = False

    def prepare(self, inputs: Inputs) -> Session:
        return ChunkAttnSession(inputs, "sequence-first")
