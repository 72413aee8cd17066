"""Decode attention for all layers of a model, with one prefix tree and one plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from chunkbench.attention.errors import WrongTokens
from chunkbench.attention.heads import DraftKernel
from chunkbench.attention.parts import CacheShape, Kernel, Partition, assemble, choose
from chunkbench.attention.tensors import TensorSpec, WrongTensor
from chunkbench.attention.tokens import Tokens
from chunkbench.attention.tree import PrefixTree
from chunkbench.attention.windows import HeadPolicy
from chunkbench.draft import MOST_ROWS
from chunkbench.kernels.changes import Append, Join
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.query_rows import QueryRows
from chunkbench.kv_dtype import KvDtype


class LayeredChunkAttention:
    """Decode attention with a prefix-aware KV cache and a two-phase partition kernel, for every layer of a model.

    A step has two parts. First the structure changes, for all layers at once: `join`, `extend`, `fork`, `truncate`,
    `remove_sequence`. Then, layer by layer, `write` takes the K and V of the new tokens, and `attend` computes
    attention. All layers have the same heads. The cost of a change depends only on the sequence that changes. A layer
    adds only the cost of its tensors, because all layers share the tree and the plan.

    Sequences with a common prefix of token ids share the K and V of the full chunks of that prefix. Token ids alone
    decide this. Rows of q and out follow `sequences`, the order of addition, for every shape of the forest. The class
    records no gradients and does not change the thread count of the process.

    All errors are `KVCacheError`s, and an error leaves the cache unchanged: `UnknownSequence` (a KeyError),
    `EmptySequence`, `WrongTokens`, `WrongTensor` and `PoolExhausted` (ValueErrors).

    - `heads` is a multiple of `kv_heads`, and `head_dim` is a multiple of 16.
    - `max_tokens`: the cache has at most the chunks that hold this many tokens. With None, memory is the limit.
    - `partition="sequence-first"` skips the chunk-first phase. The cache is the same, but every sequence reads its
      shared chunks by itself.
    - `kernel="auto"` chooses a kernel, and the attribute `kernel` names it. On a CPU it is the native kernel if that
      was built and supports the shape: chunk_size a multiple of 16, head_dim up to 256. On an NVIDIA GPU it is Triton
      if that supports the shape: float16 or bfloat16, head_dim 64, 128 or 256, chunk_size a power of two from 16. Else
      it is PyTorch.
    - `share=False` gives every sequence chunks of its own.
    - `retain` keeps the full chunks of removed or cut sequences for later sequences, until their memory is needed.
    - `kv_dtype` says how K and V are stored: in `dtype`, or in 8 bits (`KvDtype`).
    - `policy` lets some KV heads keep only a window (`HeadPolicy`). PyTorch's kernel computes it on a CPU only, and no
      exact windows.
    - `softcap`: a scaled score x becomes softcap * tanh(x / softcap); 0: it stays. It needs the native kernel.
    """

    _deferred = False
    """Whether K and V are written some time after their tokens were added. Then a join can match a chunk that is not
    written yet."""

    def __init__(
        self,
        layers: int,
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
        retain: bool = False,
        policy: HeadPolicy | None = None,
        kv_dtype: KvDtype = "same",
        softcap: float = 0.0,
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
        # With a device index: "cuda" does not equal "cuda:0", the device of tensors made on "cuda".
        device = torch.empty(0, device=device).device
        kv_heads = heads if kv_heads is None else kv_heads
        shape = CacheShape(heads, kv_heads, head_dim, chunk_size, dtype, device, layers, kv_dtype, softcap)
        shape.check()
        self.layers = layers
        self.heads = heads
        self.head_dim = head_dim
        self.kv_heads = shape.kv_heads
        self.chunk_size = chunk_size
        self.dtype = dtype
        self.device = device
        self.kv_dtype = shape.kv_dtype
        self.kernel = choose(shape, kernel)
        self.policy = policy
        self.softcap = softcap
        limit = None if max_tokens is None else -(-max_tokens // chunk_size)
        self._cache = assemble(
            *(shape, self.kernel, partition, policy, limit),
            lambda pool: PrefixTree(chunk_size, pool, share, retain, self._deferred),
        )
        self._tree, self._store, self._kernel = self._cache.tree, self._cache.store, self._cache.kernel
        # One native call checks and runs. With cold caches, checks in Python would take as long as a small step.
        native = self._kernel if isinstance(self._kernel, TppNative) and not softcap else None
        self._decode_dense = None if native is None else native.decode_dense
        self._spec = TensorSpec(dtype, device)
        self._planned = False
        self._query_rows: QueryRows | None = None

    # Queries

    @property
    def sequences(self) -> list[int]:
        """Ids of the live sequences in order of addition."""
        return self._tree.sequences

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of the chunks that sequences cover, in all layers. A partial chunk counts as a full one."""
        return self._cache.kv_bytes

    @property
    def idle_kv_bytes(self) -> int:
        """Bytes of K and V of chunks that no sequence covers, but that are kept for later sequences."""
        return self._cache.idle_kv_bytes

    @property
    def live_chunks(self) -> int:
        """Number of chunks that sequences cover."""
        return self._tree.live_chunks

    @property
    def work_items(self) -> int:
        """Number of independent work items of the current plan."""
        return self._kernel.work_items

    @property
    def plan_rebuilds(self) -> int:
        """How often a new plan was necessary because the structure of the forest had changed."""
        return self._tree.plan_rebuilds

    def length(self, sequence: int) -> int:
        """Number of tokens of a sequence. Raises UnknownSequence."""
        return self._tree.length(sequence)

    def cached_tokens(self, tokens: Tokens) -> int:
        """Number of leading tokens whose K and V the cache already holds, so that the caller need not compute them."""
        return self._tree.match(tokens)

    def reserve(self, tokens: int, touch: bool = False) -> None:
        """Make room for exactly the chunks that hold `tokens` tokens. The caller rounds the length of each prompt up to
        whole chunks before adding the lengths.

        Without this call, the cache grows by a half each time that it is full. With `touch`, the memory is also written
        once. No later step then waits until the operating system provides memory pages. Use `touch` only before any
        sequence joins. Raises PoolExhausted beyond `max_tokens`, or the allocator's error.
        """
        self._tree.pool.reserve(-(-tokens // self.chunk_size))
        if touch:
            self._store.touch()

    # The structure, for all layers at once

    def join(self, tokens: Tokens, spare: int = 0, share: bool = True) -> Join:
        """Add a sequence with its first tokens.

        The result holds the new sequence's id and the number of cached tokens. Pass it to `write` in each layer, with
        the K and V of the tokens that are not cached, before `attend` runs in that layer. Raises PoolExhausted also if
        fewer than `spare` chunks would be left for sequences that grow. Without `share`, all its chunks are new.
        """
        joined = self._cache.join(tokens, spare, share)
        self._planned = False
        return joined

    def extend(self, tokens: Tokens, sequences: Sequence[int] | None = None, counts: Tokens | None = None) -> Append:
        """Add `counts[i]` tokens to `sequences[i]`. The default is one token for each live sequence, in the order of
        rows.

        `tokens` lists the tokens of the first sequence, then those of the next, and so on. Pass the result to `write`.
        """
        appended = self._cache.extend(tokens, sequences, counts)
        self._planned = False
        return appended

    def remove_sequence(self, sequence: int) -> None:
        """Remove a sequence. New sequences can use the memory of the chunks that no other sequence covers."""
        self._tree.leave(sequence)
        self._planned = False

    def fork(self, sequence: int) -> int:
        """Add a sequence with the same tokens, as the last row, and return its id."""
        forked = self._cache.fork(sequence)
        self._planned = False
        return forked

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence, at least 1.

        If the new end lies inside a chunk that other sequences cover, the sequence gets a copy of the chunk. Raises
        PoolExhausted if there is no room for the copy. With a policy, raises WrongTokens if window heads lost the chunk
        in which the new end lies, or with exact windows a chunk of the window before it.
        """
        self._cache.truncate(sequence, length)
        self._planned = False

    def plan(self, query_rows: QueryRows | None = None) -> None:
        """Update the work descriptors after all changes. `attend` calls this method if the caller did not.

        `query_rows`: the next `attend` takes several query rows of each sequence, those of a draft that is verified,
        sequence by sequence. PyTorch's kernel and caches with a policy cannot do this. Raises WrongTokens if a sequence
        has fewer tokens than rows, ValueError if the kernel cannot do it.
        """
        if query_rows is None:
            if not self._planned or self._query_rows is not None:
                self._kernel.plan(self._tree.plan())
        else:
            if self.kernel == "torch" or self.policy is not None:
                raise ValueError("several query rows of a sequence need kernel='native' or 'triton' and no policy")
            counts = query_rows.counts
            if len(counts) != len(self._tree) or (counts < 1).any() or (counts > MOST_ROWS).any():
                raise WrongTokens(
                    f"query rows: one number from 1 to {MOST_ROWS} for each of {len(self._tree)} sequences"
                )
            if (self._tree.lengths < counts).any():
                raise WrongTokens("a sequence has fewer tokens than query rows")
            cast(DraftKernel, self._kernel).plan(self._tree.plan(), query_rows=query_rows)
        self._query_rows = query_rows
        self._planned = True

    def compress(self, sequences: Sequence[int] | None = None) -> None:
        """With a policy: let window heads lose the tokens before the windows of these sequences, by default of all
        sequences.

        K and V of all tokens of these sequences must be written in all layers. `extend` compresses the sequences that
        it extends.
        """
        self._cache.compress(sequences)
        self._planned = False

    # Tensors, layer by layer

    def write(self, layer: int, tokens: Join | Append, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write K and V of the new tokens of `join` or `extend` in one layer.

        k and v are `[n, kv_heads, head_dim]`. n is the number of tokens that `join` did not find in the cache, or that
        `extend` added.
        """
        self._check_layer(layer)
        rows = tokens.tokens if isinstance(tokens, Join) else len(tokens.chunks)
        k, v = self._checked_kv(k, v, rows)
        if isinstance(tokens, Join):
            self._store.fill(tokens.chunks, k, v, layer)
        else:
            self._store.append(tokens, k, v, layer)

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Compute attention of one query token per sequence in a layer, scaled by 1/sqrt(head_dim).

        q and out are `[b, heads, head_dim]`, b = number of live sequences, or of the rows of `plan(query_rows)`.
        Without `out` a new tensor is made. Returns out.
        """
        fits = self._planned and out is not None and 0 <= layer < self.layers and not out.requires_grad
        if fits and out is not None and self._decode_dense is not None and self._decode_dense(q, out, layer):
            return out
        self._check_layer(layer)
        rows = self._query_rows if self._planned else None
        q, out = self._checked_q(q, out, len(self._tree) if rows is None else rows.total)
        if len(out):
            self.plan(rows)
            self._kernel.decode(q, out, layer)
        return out

    def _checked_kv(self, k: torch.Tensor, v: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of `rows` tokens, without gradients."""
        shape = (rows, self.kv_heads, self.head_dim)
        return self._spec.check("k", k, shape), self._spec.check("v", v, shape)

    def _checked_q(self, q: torch.Tensor, out: torch.Tensor | None, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The queries of `rows` tokens, without gradients, and `out` or a new tensor."""
        shape = (rows, self.heads, self.head_dim)
        q = self._spec.check("q", q, shape)
        if out is None:
            return q, torch.empty(shape, dtype=self.dtype, device=self.device)
        self._spec.check_out(out, shape)
        return q, out

    def _check_layer(self, layer: int) -> None:
        # A write to a layer that does not exist would overwrite another chunk.
        if not 0 <= layer < self.layers:
            raise WrongTensor(f"there is no layer {layer}: layers are 0 to {self.layers - 1}")
