"""ChunkAttention of one layer: a change of the cache and its tensors in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunkbench.attention.layered import LayeredChunkAttention
from chunkbench.attention.parts import Kernel, Partition
from chunkbench.attention.tensors import WrongTensor
from chunkbench.kvcache import EmptySequence
from chunkbench.kvcache.tokens import Tokens, token_array


class ChunkAttention(LayeredChunkAttention):
    """Decode attention with a prefix-aware KV cache and a two-phase partition kernel (sections 3.1 and 3.2).

    One layer of `LayeredChunkAttention`, which explains sharing, rows, errors and all options.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        kv_heads: int | None = None,
        chunk_size: int = 64,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        max_tokens: int | None = None,
        partition: Partition = "two-phase",
        kernel: Kernel = "auto",
    ) -> None:
        super().__init__(1, heads, head_dim, kv_heads, chunk_size, dtype, device, max_tokens, partition, kernel)

    @torch.no_grad()
    def add_sequence(self, tokens: Tokens, k: torch.Tensor, v: torch.Tensor) -> int:
        """Add a sequence with its prompt and return its id.

        k, v `[n, kv_heads, head_dim]` for the n tokens, or only the rows after the first `cached_tokens(tokens)`.
        """
        ids = token_array(tokens)
        if len(ids) == 0:
            raise EmptySequence("a sequence needs at least one token")
        cached = self._tree.match(ids)
        rows = k.shape[0] if k.dim() == 3 else len(ids)
        if rows not in (len(ids), len(ids) - cached):
            wanted = f"{len(ids)} rows" + (f", or the {len(ids) - cached} that are not cached" if cached else "")
            raise WrongTensor(f"k has {rows} rows for {len(ids)} tokens: it takes {wanted}")
        self._wanted.check("k", k, (rows, self.kv_heads, self.head_dim))
        self._wanted.check("v", v, (rows, self.kv_heads, self.head_dim))
        joined = self.join(ids)
        known = rows - joined.tokens
        self._store.fill(joined.chunks, k[known:], v[known:])
        return joined.sequence

    @torch.no_grad()
    def append(
        self,
        tokens: Tokens,
        k: torch.Tensor,
        v: torch.Tensor,
        sequences: Sequence[int] | None = None,
        counts: Tokens | None = None,
    ) -> None:
        """Add one token to every sequence, by row: token ids `[b]`, k and v `[b, kv_heads, head_dim]`.

        With `sequences` only to these, in this order; with `counts` so many tokens to each of them, the first one's
        tokens before the next one's, and k and v have a row for each token.
        """
        ids = token_array(tokens)
        self._wanted.check("k", k, (len(ids), self.kv_heads, self.head_dim))
        self._wanted.check("v", v, (len(ids), self.kv_heads, self.head_dim))
        self._store.append(self.extend(ids, sequences, counts), k, v)

    def decode(self, q: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Attention of one query token per sequence, scaled by 1/sqrt(head_dim).

        q and out `[b, heads, head_dim]`, b = number of live sequences; out is made if it is not given, and returned.
        """
        return self.attend(0, q, out)
