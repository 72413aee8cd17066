"""ChunkAttention for one layer: one call changes the cache and writes the tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunkbench.attention.errors import EmptySequence
from chunkbench.attention.heads import DraftKernel
from chunkbench.attention.layered import LayeredChunkAttention
from chunkbench.attention.parts import Kernel, Partition, new_kernel
from chunkbench.attention.tensors import WrongTensor
from chunkbench.attention.tokens import Tokens, token_array
from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels.cpu.decode import NativeDecode
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.planners import Planner
from chunkbench.kernels.trace import Trace, TracedCall
from chunkbench.kv_dtype import KvDtype


class ChunkAttention(LayeredChunkAttention):
    """Decode attention with a prefix-aware KV cache and a two-phase partition kernel (sections 3.1 and 3.2).

    This class is one layer of `LayeredChunkAttention`, which explains sharing, rows, errors and all options.
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
        share: bool = True,
        policy: HeadPolicy | None = None,
        kv_dtype: KvDtype = "same",
    ) -> None:
        super().__init__(
            *(1, heads, head_dim, kv_heads, chunk_size, dtype, device, max_tokens, partition, kernel, share),
            policy=policy,
            kv_dtype=kv_dtype,
        )

    def add_sequence(self, tokens: Tokens, k: torch.Tensor, v: torch.Tensor) -> int:
        """Add a sequence with its prompt and return its id.

        k, v `[n, kv_heads, head_dim]` hold all n tokens, or only the tokens after the first `cached_tokens(tokens)`.
        """
        ids = token_array(tokens)
        if len(ids) == 0:
            raise EmptySequence("a sequence needs at least one token")
        cached = self._tree.match(ids)
        rows = k.shape[0] if k.dim() == 3 else len(ids)
        if rows not in (len(ids), len(ids) - cached):
            expected = f"{len(ids)} rows" + (f", or {len(ids) - cached} for the tokens not cached" if cached else "")
            raise WrongTensor(f"k has {rows} rows for {len(ids)} tokens: it needs {expected}")
        k, v = self._checked_kv(k, v, rows)
        joined = self.join(ids)
        cached_rows = rows - joined.tokens
        self._store.fill(joined.chunks, k[cached_rows:], v[cached_rows:])
        return joined.sequence

    def append(
        self,
        tokens: Tokens,
        k: torch.Tensor,
        v: torch.Tensor,
        sequences: Sequence[int] | None = None,
        counts: Tokens | None = None,
    ) -> None:
        """Add one token to every sequence, in the order of rows. Token ids are `[b]`, k and v are `[b, kv_heads,
        head_dim]`.

        With `sequences`, add tokens only to these sequences, in this order. With `counts`, add `counts[i]` tokens to
        sequence i. `tokens` lists the tokens of the first sequence, then those of the next. k and v have one row per
        token.
        """
        ids = token_array(tokens)
        k, v = self._checked_kv(k, v, len(ids))
        self._store.append(self.extend(ids, sequences, counts), k, v)

    def decode(self, q: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Compute attention of one query token per sequence, scaled by 1/sqrt(head_dim).

        q and out are `[b, heads, head_dim]`, b = number of live sequences. Without `out` a new tensor is made. Returns
        out.
        """
        return self.attend(0, q, out)

    @property
    def forest(self) -> Plan:
        """The current plan of the forest, for the kernel of `with_planner`."""
        return self._tree.plan()

    def with_planner(self, planner: Planner) -> DraftKernel:
        """A second kernel over the same K and V, with the items of another planner. Raises ValueError.

        The kernel does not notice changes of the cache: call its `plan(forest)` before its `decode`.
        """
        if self.kernel == "torch" or self.policy is not None:
            raise ValueError("another planner needs kernel='native' or 'triton' and no policy")
        return new_kernel(self._store, self.heads, planner)

    def trace(self, q: torch.Tensor, out: torch.Tensor, call: TracedCall) -> Trace | None:
        """The time of each unit of work of one call, after `plan`. Only the native kernel without a policy can trace;
        others return None.

        `call`: `decode` runs a whole decode, `read` only its reads, `compute` only its arithmetic. After `compute`, out
        holds no result. q and out are `[b, heads, head_dim]`, and out is contiguous. Raises WrongTensor.
        """
        rows = self._query_rows if self._planned else None
        q, out = self._checked_q(q, out, len(self._tree) if rows is None else rows.total)
        if not isinstance(self._kernel, NativeDecode) or not len(out):
            return None
        if not out.is_contiguous():
            raise WrongTensor("out must be contiguous")
        self.plan(rows)
        return self._kernel.trace(q, out, call)
