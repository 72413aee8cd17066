"""Forests of sequences for tests of kernels: what a tree and a store are fed, and what each sequence then holds."""

from __future__ import annotations

import random

import torch

from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.reference import attention
from chunkbench.kvcache import PrefixTree

_LONGEST = 64
"""Tokens of a segment, at most."""


class Forest:
    """A tree and a store that grow together, and each row's whole K and V `[n, h_kv, d]` beside them."""

    def __init__(self, store: ChunkStore, seed: int) -> None:
        self.store = store
        self.tree = PrefixTree(store.chunk_size)
        self.contexts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._segments: dict[tuple[tuple[int, int], ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def normal(self, *shape: int) -> torch.Tensor:
        """Standard normals of the store's dtype, on its device."""
        drawn = torch.randn(shape, generator=self._generator)
        return drawn.to(self.store.dtype).to(self.store.device)

    def join(self, path: list[tuple[int, int]]) -> int:
        """Add a sequence of segments `(name, tokens)`; sequences that begin alike share tokens and values."""
        ids, keys, values = [], list[torch.Tensor](), list[torch.Tensor]()
        for depth, (name, tokens) in enumerate(path):
            above = (*path[:depth], (name, 0))
            if above not in self._segments:
                shape = (_LONGEST, self.store.kv_heads, self.store.head_dim)
                self._segments[above] = self.normal(*shape), self.normal(*shape)
            ids += [1000 * name + token for token in range(tokens)]
            keys.append(self._segments[above][0][:tokens])
            values.append(self._segments[above][1][:tokens])
        k, v = torch.cat(keys), torch.cat(values)
        self.store.grow(self.tree.pool.capacity_for(self.tree.chunks_to_join(ids)))
        joined = self.tree.join(ids)
        self.store.fill(joined.chunks, k[joined.cached :], v[joined.cached :])
        self.contexts.append((k, v))
        return joined.sequence

    def append(self) -> None:
        """Every sequence takes one token."""
        rows = len(self.contexts)
        k, v = (self.normal(rows, self.store.kv_heads, self.store.head_dim) for _ in range(2))
        self.store.grow(self.tree.pool.capacity_for(self.tree.chunks_to_append()))
        appended = self.tree.append([self._random.randrange(10**6, 10**7) for _ in range(rows)])
        self.store.append(appended.chunks, appended.slots, appended.new, k, v)
        self.contexts = [
            (torch.cat([keys, k[row : row + 1]]), torch.cat([values, v[row : row + 1]]))
            for row, (keys, values) in enumerate(self.contexts)
        ]

    def leave(self, row: int) -> None:
        """Remove the sequence in a row."""
        self.tree.leave(self.tree.sequences[row])
        del self.contexts[row]

    def error(self, q: torch.Tensor, out: torch.Tensor) -> float:
        """Largest error of out `[b, h, d]` over the largest reference value."""
        expected = torch.stack([attention(q[row], k, v) for row, (k, v) in enumerate(self.contexts)])
        got = out[: len(expected)].double()
        assert torch.isfinite(got).all()
        return ((got - expected).abs().max() / expected.abs().max()).item()
