"""ChunkAttention for those who want the algorithm and not the suite: tree, chunk store and kernel put together."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from chunkbench.kernels import cpu, triton
from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kernels.tpp_torch import TppTorch
from chunkbench.kernels.work import PlanLike
from chunkbench.kvcache import ChunkPool, EmptySequence, KVCacheError, PrefixTree, WrongTokens
from chunkbench.kvcache.tokens import Tokens, token_array

Partition = Literal["two-phase", "sequence-first"]
Kernel = Literal["auto", "native", "triton", "torch"]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class _Decode(Protocol):
    """What the kernels have in common."""

    @property
    def work_items(self) -> int: ...
    def plan(self, plan: PlanLike) -> None: ...
    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None: ...


class WrongTensor(KVCacheError, ValueError):
    """A tensor's shape, dtype, device or memory layout is not what the call needs."""


class ChunkAttention:
    """Decode attention with a prefix-aware KV cache and a two-phase partition kernel (sections 3.1 and 3.2).

    Sequences whose leading token ids agree share the K and V of the chunks that agree as a whole, found from the ids
    alone. Rows of q, out and of what is appended follow `sequences`, the order of addition, whatever the shape of the
    forest. Every error is raised before anything changes: `UnknownSequence` (a KeyError), and `EmptySequence`,
    `WrongTokens`, `WrongTensor`, `SharedChunk`, `PoolExhausted` (ValueErrors), all of them `KVCacheError`s.
    Gradients are not recorded; the thread count of the process is left alone.

    `heads % kv_heads == 0`; `head_dim` is a multiple of 16; `max_tokens` limits the chunks to as many as hold that
    many tokens (None: memory is the limit). `partition="sequence-first"` leaves the chunk-first phase out: the same
    cache, but every sequence reads its shared chunks for itself. `kernel="auto"` takes the native kernel on a CPU where
    it was built and takes the shape (chunk_size a multiple of 16, head_dim up to 256), Triton's on an NVIDIA GPU where
    it does (float16 or bfloat16, head_dim 64, 128 or 256, chunk_size a power of two from 16), else PyTorch's; `kernel`
    says which it came to.
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
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads != 0:
            raise ValueError(f"{heads} query heads cannot be spread evenly over {kv_heads} KV heads")
        if head_dim < 16 or head_dim % 16 != 0:
            raise ValueError(f"head_dim is a multiple of 16, not {head_dim}")
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is float32, float16 or bfloat16, not {dtype}")
        if partition not in ("two-phase", "sequence-first"):
            raise ValueError(f"partition is 'two-phase' or 'sequence-first', not {partition!r}")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is at least 1, not {max_tokens}")
        self.heads = heads
        self.head_dim = head_dim
        self.kv_heads = kv_heads
        self.chunk_size = chunk_size
        self.dtype = dtype
        # An index, so that "cuda" and the device of tensors made on "cuda" compare equal.
        self.device = torch.empty(0, device=device).device
        if kernel not in ("auto", "native", "triton", "torch"):
            raise ValueError(f"kernel is 'auto', 'native', 'triton' or 'torch', not {kernel!r}")
        own: Literal["native", "triton"] = "native" if self.device.type == "cpu" else "triton"
        wanted = own if kernel == "auto" else kernel
        obstacle = "" if wanted == "torch" else self._obstacle(wanted)
        if kernel != "auto" and obstacle:
            raise ValueError(f"kernel={kernel!r}: {obstacle}")
        self.kernel: Literal["native", "triton", "torch"] = "torch" if obstacle else wanted
        limit = None if max_tokens is None else -(-max_tokens // chunk_size)
        self._tree = PrefixTree(chunk_size, ChunkPool(limit))
        chunk_first = partition == "two-phase"
        self._store: ChunkStore
        self._kernel: _Decode
        if self.kernel == "native":
            self._store = packed = PackedStore(chunk_size, kv_heads, head_dim, dtype)
            self._kernel = TppNative(packed, heads, chunk_first)
        elif self.kernel == "triton":
            # Importing Triton takes a second, and only a GPU needs it.
            from chunkbench.kernels.triton.decode import TppTriton
            from chunkbench.kernels.triton.store import TritonStore

            self._store = store = TritonStore(chunk_size, kv_heads, head_dim, dtype, self.device)
            self._kernel = TppTriton(store, heads, chunk_first)
        else:
            self._store = ChunkStore(chunk_size, kv_heads, head_dim, dtype, self.device)
            self._kernel = TppTorch(self._store, heads, chunk_first)
        self._planned = False

    def _obstacle(self, kernel: Literal["native", "triton"]) -> str:
        """Why a kernel cannot be used; empty when it can."""
        if kernel == "triton":
            unfit = triton.why_not(self.dtype, self.heads, self.kv_heads, self.head_dim, self.chunk_size)
            return triton.why_unavailable(self.device) or unfit
        if self.device.type != "cpu":
            return f"it runs on a CPU, not on {self.device}"
        if self.chunk_size % 16 or self.head_dim > 256:
            return "it takes chunk sizes that are multiples of 16 and head dimensions up to 256"
        return cpu.why_missing()

    @property
    def sequences(self) -> list[int]:
        """Ids of the live sequences in order of addition."""
        return self._tree.sequences

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of the chunks in use, whole chunks."""
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
        return int(self._tree.lengths[self._tree.row(sequence)])

    def cached_tokens(self, tokens: Tokens) -> int:
        """How many leading tokens the cache holds already: their K and V need not be computed."""
        return self._tree.match(tokens)

    def reserve(self, tokens: int) -> None:
        """Make room for chunks that hold `tokens` tokens in all, and no more; a prompt's partial chunk counts whole.

        Without it room grows by halves. Raises PoolExhausted beyond `max_tokens`, or the allocator's error.
        """
        chunks = -(-tokens // self.chunk_size)
        self._tree.pool.check(chunks)
        self._store.grow(chunks)
        self._tree.pool.reserve(chunks)

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
        self._check("k", k, (rows, self.kv_heads, self.head_dim))
        self._check("v", v, (rows, self.kv_heads, self.head_dim))
        self._make_room(self._tree.chunks_to_join(ids))
        joined = self._tree.join(ids)
        known = joined.cached - (len(ids) - rows)
        self._store.fill(joined.chunks, k[known:], v[known:])
        self._planned = False
        return joined.sequence

    @torch.no_grad()
    def append(self, tokens: Tokens, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add one token to every sequence, by row: token ids `[b]`, k and v `[b, kv_heads, head_dim]`."""
        ids = token_array(tokens)
        rows = len(self._tree)
        if len(ids) != rows:
            raise WrongTokens(f"{len(ids)} tokens for {rows} live sequences: append takes one for each")
        self._check("k", k, (rows, self.kv_heads, self.head_dim))
        self._check("v", v, (rows, self.kv_heads, self.head_dim))
        self._make_room(self._tree.chunks_to_append())
        appended = self._tree.append(ids)
        self._store.append(appended.chunks, appended.slots, appended.new, k, v)
        self._planned = False

    def remove_sequence(self, sequence: int) -> None:
        """Remove a sequence; memory that no other sequence uses is free for new ones."""
        self._tree.leave(sequence)
        self._planned = False

    @torch.no_grad()
    def fork(self, sequence: int) -> int:
        """Add a sequence with the same tokens, as the last row, and return its id."""
        self._make_room(self._tree.chunks_to_fork(sequence))
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
        """Bring the work descriptors up to date with all changes; `decode` does it when it was not done."""
        if not self._planned:
            self._kernel.plan(self._tree.plan())
            self._planned = True

    @torch.no_grad()
    def decode(self, q: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Attention of one query token per sequence, scaled by 1/sqrt(head_dim).

        q and out `[b, heads, head_dim]`, b = number of live sequences; out is made if it is not given, and returned.
        """
        shape = (len(self._tree), self.heads, self.head_dim)
        self._check("q", q, shape)
        if out is None:
            out = torch.empty(shape, dtype=self.dtype, device=self.device)
        else:
            self._check("out", out, shape)
            if any(stride == 0 and size > 1 for stride, size in zip(out.stride(), shape, strict=True)):
                raise WrongTensor("out has several elements in one place (it was expanded): it cannot be written to")
            if out.requires_grad:
                raise WrongTensor("out requires gradients: decode attention records none")
        if shape[0] == 0:
            return out
        self.plan()
        self._kernel.decode(q, out)
        return out

    def _make_room(self, chunks: int) -> None:
        # Before the tree changes: running out of memory then leaves everything as it was.
        self._store.grow(self._tree.pool.capacity_for(chunks))

    def _check(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != shape:
            raise WrongTensor(f"{name} has shape {tuple(tensor.shape)}, not {shape}")
        if tensor.dtype != self.dtype:
            raise WrongTensor(f"{name} is {tensor.dtype}, not {self.dtype}")
        if tensor.device != self.device:
            raise WrongTensor(f"{name} is on {tensor.device}, not on {self.device}")
        if tensor.layout != torch.strided:
            raise WrongTensor(f"{name} is a sparse tensor; K, V, q and out are dense")
