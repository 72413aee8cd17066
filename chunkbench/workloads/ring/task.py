"""The work of a ring: tasks, and the q, K and V of a context, which every rank draws for itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch

from chunkbench.kernels.integers import Ints
from chunkbench.workloads.ring.blocks import Heads
from chunkbench.workloads.ring.placement import Scheme, pairs

_POOL = 1 << 22
_STRIDE = 16


@lru_cache(maxsize=1)
def _pool(seed: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(_POOL, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


class ContextInputs:
    """Random inputs: `tokens` keys and values and `queries` queries, drawn from a standard normal distribution."""

    def __init__(self, shape: Heads, tokens: int, queries: int, seed: int, device: str = "cpu") -> None:
        self._shape = shape
        self._pool = _pool(seed, shape.dtype, device)
        generator = torch.Generator().manual_seed(seed + 1)
        rows = (_POOL - shape.heads * shape.head_dim) // _STRIDE
        self._rows_of_kv = torch.randint(rows, (2, tokens), generator=generator)
        self._rows_of_q = torch.randint(rows, (queries,), generator=generator)

    def keys_values(self, tokens: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[n, h_kv, d]` of these tokens."""
        k, v = (self._draw(rows[torch.from_numpy(tokens)], self._shape.kv_heads) for rows in self._rows_of_kv)
        return k, v

    def queries(self, rows: Ints) -> torch.Tensor:
        """Queries `[n, h, d]`."""
        return self._draw(self._rows_of_q[torch.from_numpy(rows)], self._shape.heads)

    def _draw(self, rows: torch.Tensor, heads: int) -> torch.Tensor:
        width = heads * self._shape.head_dim
        pool = self._pool.as_strided(((_POOL - width) // _STRIDE, width), (_STRIDE, 1))
        return pool.index_select(0, rows.to(pool.device)).view(len(rows), heads, self._shape.head_dim)


@dataclass(frozen=True)
class Task:
    """The attention to compute: the prefill of one sequence of `tokens` tokens, or a decode step of `sequences`
    sequences.

    Sequences that decode share their first `shared` tokens, which are split over the ranks. The other tokens of a
    sequence, and its row, belong to one rank.
    """

    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    phase: Literal["prefill", "decode"]
    tokens: int
    causal: bool = True
    sequences: int = 1
    shared: int = 0

    @property
    def shape(self) -> Heads:
        """Shape and dtype of q, K and V."""
        return Heads(self.heads, self.kv_heads, self.head_dim, getattr(torch, self.dtype))

    @property
    def own(self) -> int:
        """Number of tokens of a decoding sequence that are not shared."""
        return self.tokens - self.shared

    def inputs(self, seed: int, device: str) -> ContextInputs:
        """All of K, V and q. The own tokens of decoding sequences follow the shared tokens."""
        if self.phase == "prefill":
            return ContextInputs(self.shape, self.tokens, self.tokens, seed, device)
        return ContextInputs(self.shape, self.shared + self.sequences * self.own, self.sequences, seed, device)

    def rows(self, ranks: int, rank: int) -> Ints:
        """The decoding sequences of a rank."""
        most = -(-self.sequences // ranks)
        return np.arange(rank * most, min(self.sequences, (rank + 1) * most))

    def pairs(self, scheme: Scheme, ranks: int, rank: int) -> int:
        """Pairs of query and key that a rank computes."""
        if self.phase == "prefill":
            return pairs(scheme.layout, self.tokens, ranks, rank, self.causal)
        mine = len(self.rows(ranks, rank))
        if scheme.movement == "merge":
            return self.sequences * self.shared // ranks + mine * self.own
        return mine * self.tokens

    def bytes(self, scheme: Scheme, ranks: int) -> int:
        """Bytes that all ranks together hold, approximately: K and V, queries and outputs."""
        shape, ranks = self.shape, scheme.ranks or ranks
        decodes = self.phase == "decode"
        rows, tokens = (self.sequences, self.shared + self.sequences * self.own) if decodes else (self.tokens,) * 2
        kv = 2 * self.kv_heads * self.head_dim * shape.dtype.itemsize * tokens
        copies = {"ring": 2, "merge": 1, "gather": ranks + 1, "none": ranks}[scheme.movement]
        library = 1 if scheme.kernel in ("native", "flash") else 3
        return library * (kv * copies + rows * self.heads * self.head_dim * (4 + shape.dtype.itemsize))

    def context(self, row: int) -> Ints:
        """The tokens that a row attends to. A row is a token of the prefilled sequence, or a decoding sequence."""
        if self.phase == "prefill":
            return np.arange(row + 1 if self.causal else self.tokens)
        own = self.shared + row * self.own
        return np.concatenate([np.arange(self.shared), np.arange(own, own + self.own)])
