"""Random forests for kernel tests: fill a tree and a store, and keep a copy of every sequence's K and V."""

from __future__ import annotations

import random

import torch

from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.reference import attention
from chunkbench.kvcache import ChunkPool, PrefixTree

_MAX_TOKENS = 64
"""Largest number of tokens of a segment."""


class Forest:
    """A tree and a store that grow together, and a copy of each row's K and V `[layers, n, h_kv, d]`."""

    def __init__(self, store: ChunkStore, seed: int) -> None:
        self.store = store
        self.tree = PrefixTree(store.chunk_size, ChunkPool(make_room=store.grow))
        self.contexts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._segments: dict[tuple[tuple[int, int], ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def normal(self, *shape: int) -> torch.Tensor:
        """Standard normals of the store's dtype, on its device."""
        drawn = torch.randn(shape, generator=self._generator)
        return drawn.to(self.store.dtype).to(self.store.device)

    def join(self, path: list[tuple[int, int]]) -> int:
        """Add a sequence of segments `(name, tokens)`. Sequences with a common prefix share tokens and values."""
        ids, keys, values = [], list[torch.Tensor](), list[torch.Tensor]()
        for depth, (name, tokens) in enumerate(path):
            prefix = (*path[:depth], (name, 0))
            if prefix not in self._segments:
                self._segments[prefix] = self._tokens(_MAX_TOKENS), self._tokens(_MAX_TOKENS)
            ids += [1000 * name + token for token in range(tokens)]
            keys.append(self._segments[prefix][0][:, :tokens])
            values.append(self._segments[prefix][1][:, :tokens])
        k, v = torch.cat(keys, 1), torch.cat(values, 1)
        joined = self.tree.join(ids)
        for layer in range(self.store.layers):
            self.store.fill(joined.chunks, k[layer, joined.cached :], v[layer, joined.cached :], layer)
        self.contexts.append((k, v))
        return joined.sequence

    def append(self) -> None:
        """Append one token to every sequence."""
        self._append(list(range(len(self.contexts))), None)

    def append_to(self, counts: dict[int, int]) -> None:
        """Append tokens to some sequences. `counts` maps a row to the number of its new tokens."""
        self._append(list(counts), list(counts.values()))

    def _append(self, rows: list[int], counts: list[int] | None) -> None:
        sequences = None if counts is None else [self.tree.sequences[row] for row in rows]
        token_counts = counts or [1] * len(rows)
        k, v = self._tokens(sum(token_counts)), self._tokens(sum(token_counts))
        ids = [self._random.randrange(10**6, 10**7) for _ in range(sum(token_counts))]
        appended = self.tree.append(ids, sequences, counts)
        for layer in range(self.store.layers):
            self.store.append(appended, k[layer], v[layer], layer)
        for row, added in zip(rows, zip(k.split(token_counts, 1), v.split(token_counts, 1), strict=True), strict=True):
            self.contexts[row] = (
                torch.cat([self.contexts[row][0], added[0]], 1),
                torch.cat([self.contexts[row][1], added[1]], 1),
            )

    def leave(self, row: int) -> None:
        """Remove the sequence in a row."""
        self.tree.leave(self.tree.sequences[row])
        del self.contexts[row]

    def error(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0) -> float:
        """Largest error of out `[b, h, d]` over the largest reference value."""
        expected = torch.stack([attention(q[row], k[layer], v[layer]) for row, (k, v) in enumerate(self.contexts)])
        actual = out[: len(expected)].double()
        assert torch.isfinite(actual).all()
        return ((actual - expected).abs().max() / expected.abs().max()).item()

    def _tokens(self, count: int) -> torch.Tensor:
        return self.normal(self.store.layers, count, self.store.kv_heads, self.store.head_dim)
