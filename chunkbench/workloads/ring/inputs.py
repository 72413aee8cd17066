"""q, K and V of a context, the same on every rank without being sent: rows of one pool of normals, drawn by a seed."""

from __future__ import annotations

from functools import lru_cache

import torch

from chunkbench.kernels.integers import Ints
from chunkbench.workloads.ring.blocks import Heads

_POOL = 1 << 22
_STRIDE = 16


@lru_cache(maxsize=1)
def _pool(seed: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(_POOL, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


class ContextInputs:
    """`tokens` keys and values, and `queries` queries, of standard normal numbers."""

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
