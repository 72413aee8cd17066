"""Decode attention of all layers of a model over one prefix tree and one plan."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunkbench.attention.parts import Kernel, Partition, Shape, assemble, choose
from chunkbench.attention.tensors import Wanted, WrongTensor
from chunkbench.kvcache import Append, ChunkPool, Join, PrefixTree
from chunkbench.kvcache.tokens import Tokens


class LayeredChunkAttention:
    """Decode attention with a prefix-aware KV cache and a two-phase partition kernel, for every layer of a model.

    A step has two parts. First the structure changes, for all layers at once: `join`, `extend`, `fork`, `truncate`,
    `remove_sequence`. Then, layer by layer, `write` takes the K and V of the tokens that came, and `attend` computes
    attention. All layers have the same heads. What a sequence does costs what that sequence costs, whatever the others
    do; a layer costs its tensors alone, since tree and plan belong to all of them.

    Sequences whose leading token ids agree share the K and V of the chunks that agree as a whole, found from the ids
    alone. Rows of q and out follow `sequences`, the order of addition, whatever the shape of the forest. Every error is
    raised before anything changes: `UnknownSequence` (a KeyError), and `EmptySequence`, `WrongTokens`, `WrongTensor`,
    `SharedChunk`, `PoolExhausted` (ValueErrors), all of them `KVCacheError`s. Gradients are not recorded; the thread
    count of the process is left alone.

    `heads % kv_heads == 0`; `head_dim` is a multiple of 16; `max_tokens` limits the chunks to as many as hold that
    many tokens (None: memory is the limit). `partition="sequence-first"` leaves the chunk-first phase out: the same
    cache, but every sequence reads its shared chunks for itself. `kernel="auto"` takes the native kernel on a CPU where
    it was built and takes the shape (chunk_size a multiple of 16, head_dim up to 256), Triton's on an NVIDIA GPU where
    it does (float16 or bfloat16, head_dim 64, 128 or 256, chunk_size a power of two from 16), else PyTorch's; `kernel`
    says which it came to.
    """

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
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is at least 1, not {max_tokens}")
        # An index, so that "cuda" and the device of tensors made on "cuda" compare equal.
        device = torch.empty(0, device=device).device
        shape = Shape(heads, heads if kv_heads is None else kv_heads, head_dim, chunk_size, dtype, device, layers)
        shape.check()
        self.layers = layers
        self.heads = heads
        self.head_dim = head_dim
        self.kv_heads = shape.kv_heads
        self.chunk_size = chunk_size
        self.dtype = dtype
        self.device = device
        self.kernel = choose(shape, kernel)
        self._store, self._kernel = assemble(shape, self.kernel, partition)
        limit = None if max_tokens is None else -(-max_tokens // chunk_size)
        # The store grows before the tree changes: running out of memory leaves everything as it was.
        self._tree = PrefixTree(chunk_size, ChunkPool(limit, self._store.grow))
        self._wanted = Wanted(dtype, device)
        self._planned = False

    # What is held

    @property
    def sequences(self) -> list[int]:
        """Ids of the live sequences in order of addition."""
        return self._tree.sequences

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of the chunks in use, whole chunks, all layers."""
        return self._tree.pool.in_use * self._store.chunk_bytes

    @property
    def work_items(self) -> int:
        """Independent pieces of work of the current plan."""
        return self._kernel.work_items

    @property
    def plan_rebuilds(self) -> int:
        """How often the plan was built anew because the structure of the forest had changed."""
        return self._tree.plan_rebuilds

    def length(self, sequence: int) -> int:
        """Tokens of a sequence. Raises UnknownSequence."""
        return self._tree.length(sequence)

    def cached_tokens(self, tokens: Tokens) -> int:
        """How many leading tokens the cache holds already: their K and V need not be computed."""
        return self._tree.match(tokens)

    def reserve(self, tokens: int) -> None:
        """Make room for chunks that hold `tokens` tokens in all, and no more; a prompt's partial chunk counts whole.

        Without it room grows by halves. Raises PoolExhausted beyond `max_tokens`, or the allocator's error.
        """
        self._tree.pool.reserve(-(-tokens // self.chunk_size))

    # The structure, for all layers at once

    def join(self, tokens: Tokens) -> Join:
        """Add a sequence with its first tokens.

        The result says which sequence it is, how many of the tokens are cached, and is what `write` takes: in each
        layer, K and V of the others have to be written before attention is computed there.
        """
        joined = self._tree.join(tokens)
        self._planned = False
        return joined

    def extend(self, tokens: Tokens, sequences: Sequence[int] | None = None, counts: Tokens | None = None) -> Append:
        """Add tokens to some sequences: `counts[i]` of them, one by default, to `sequences[i]`, by default to all.

        `tokens` are those of the first sequence, then those of the next. The result is what `write` takes.
        """
        appended = self._tree.append(tokens, sequences, counts)
        self._planned = False
        return appended

    def remove_sequence(self, sequence: int) -> None:
        """Remove a sequence; memory that no other sequence uses is free for new ones."""
        self._tree.leave(sequence)
        self._planned = False

    @torch.no_grad()
    def fork(self, sequence: int) -> int:
        """Add a sequence with the same tokens, as the last row, and return its id."""
        forked = self._tree.fork(sequence)
        if forked.copy is not None:
            self._store.copy(forked.copy.source, forked.copy.target, forked.copy.tokens)
        self._planned = False
        return forked.sequence

    @torch.no_grad()
    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence, at least 1.

        Raises SharedChunk where the end would lie inside a chunk that other sequences cover.
        """
        before = self.length(sequence)
        cut = self._tree.truncate(sequence, length)
        if cut is not None:
            held = before - (length - cut.tokens)
            self._store.cut(cut.chunk, cut.tokens, min(held, self.chunk_size))
        self._planned = False

    @torch.no_grad()
    def plan(self) -> None:
        """Bring the work descriptors up to date with all changes; `attend` does it when it was not done."""
        if not self._planned:
            self._kernel.plan(self._tree.plan())
            self._planned = True

    # Tensors, layer by layer

    @torch.no_grad()
    def write(self, layer: int, tokens: Join | Append, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write K and V of the tokens that `join` or `extend` took in, in one layer.

        k, v `[n, kv_heads, head_dim]`, n = tokens that are not cached, or tokens that were appended.
        """
        self._check_layer(layer)
        rows = tokens.tokens if isinstance(tokens, Join) else len(tokens.chunks)
        self._wanted.check("k", k, (rows, self.kv_heads, self.head_dim))
        self._wanted.check("v", v, (rows, self.kv_heads, self.head_dim))
        if isinstance(tokens, Join):
            self._store.fill(tokens.chunks, k, v, layer)
        else:
            self._store.append(tokens, k, v, layer)

    @torch.no_grad()
    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Attention of one query token per sequence in a layer, scaled by 1/sqrt(head_dim).

        q and out `[b, heads, head_dim]`, b = number of live sequences; out is made if it is not given, and returned.
        """
        self._check_layer(layer)
        shape = (len(self._tree), self.heads, self.head_dim)
        self._wanted.check("q", q, shape)
        if out is None:
            out = torch.empty(shape, dtype=self.dtype, device=self.device)
        else:
            self._wanted.check_out(out, shape)
        if shape[0] == 0:
            return out
        self.plan()
        self._kernel.decode(q, out, layer)
        return out

    def _check_layer(self, layer: int) -> None:
        # A wrong layer would be written over another chunk.
        if not 0 <= layer < self.layers:
            raise WrongTensor(f"there is no layer {layer}: layers are 0 to {self.layers - 1}")
