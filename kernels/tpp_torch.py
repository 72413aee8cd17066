"""Two-phase partition (TPP) decode attention in PyTorch (section 3.2 of the paper)."""

from __future__ import annotations

import torch

from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.merge import LEAST, Partials
from chunkbench.kernels.products import Scratch, products_for
from chunkbench.kernels.work import Limits, PrivatePiece, SharedPiece, Work, make_work
from chunkbench.kvcache.plan import Plan

# What a piece writes and soon reads again, in bytes: small enough for a CPU's cache, large enough that the few
# microseconds of each PyTorch call do not show. A GPU wants few, large launches instead.
_CPU_BYTES = 8 << 20
_GPU_BYTES = 256 << 20
# Converted K or V of a piece, where products need a conversion first.
_LOAD_BYTES = 8 << 20


class TppTorch:
    """Decode attention over the chunks of a store.

    Chunk first: for chunks that several sequences cover, their queries form a matrix, and K and V are read once for
    all of them. Sequence first: all other chunks, those of all sequences in one batch, as views of the slabs. Both
    leave partial results (O, m, n) in float32, which are merged at the end. `chunk_first=False` leaves the first phase
    out: every sequence reads all of its chunks for itself.

    `plan` makes all descriptors; `decode` neither waits for the device nor allocates once its memory has its size.
    Where a score is +inf the result is NaN.
    """

    def __init__(self, store: ChunkStore, heads: int, chunk_first: bool = True) -> None:
        self.store = store
        self.heads = heads
        self.chunk_first = chunk_first
        self._group = heads // store.kv_heads
        self._scratch = Scratch(store.device)
        self._products = products_for(store.dtype, store.device, store.head_dim**-0.5, self._scratch)
        self._partials = Partials(heads, store.head_dim, store.device)
        self._plan: Plan | None = None
        self._work: Work | None = None

    @property
    def work_items(self) -> int:
        """Pieces of the current plan: batches of matrix products that are independent of each other."""
        return 0 if self._work is None else len(self._work.shared) + len(self._work.private)

    def plan(self, plan: Plan) -> None:
        """Make the work descriptors of a plan; of the plan of last time, only bring the lengths up to date."""
        if plan is self._plan and self._work is not None:
            self._work.refresh(plan.last_tokens)
            return
        self._work = make_work(plan, self.store, self._limits(), self.chunk_first)
        self._partials.reset(self._work.rows, len(plan.last_tokens))
        self._plan = plan

    def decode(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0) -> None:
        """Attention of q `[b, h, d]` over the planned contexts of a layer into out `[b, h, d]`, scaled by 1/sqrt(d)."""
        assert self._work is not None
        q = q.to(self._products.dtype)
        for shared in self._work.shared:
            self._shared(shared, q, layer)
        for private in self._work.private:
            self._private(private, q, layer)
        self._partials.merge(out)

    def _shared(self, piece: SharedPiece, q: torch.Tensor, layer: int) -> None:
        store, group = self.store, self._group
        kv_heads, dim = store.kv_heads, store.head_dim
        rows = len(piece.rows)
        by_head = q.index_select(0, piece.rows).view(rows, kv_heads, group, dim).transpose(0, 1)
        queries = by_head.reshape(kv_heads, rows * group, dim)
        scores = self._scratch.take("scores", (len(piece.keys[layer]), kv_heads, rows * group, store.chunk_size))
        parts = scores.unbind(0)
        for part, keys in zip(parts, piece.keys[layer], strict=True):
            self._products.scores(part, queries, self._products.load(keys))
        peaks = scores.amax((0, 3)).clamp_(min=LEAST)
        sums = scores.sub_(peaks.unsqueeze(-1)).exp_().sum((0, 3))
        outputs = self._scratch.take("outputs", (kv_heads, rows * group, dim))
        for index, (part, values) in enumerate(zip(parts, piece.values[layer], strict=True)):
            self._products.outputs(outputs, part, self._products.load(values), add=index > 0)
        of_rows = (rows, kv_heads, group)
        of_heads = (kv_heads, rows, group)
        self._partials.peaks[piece.entries].view(of_rows).copy_(peaks.view(of_heads).transpose(0, 1))
        self._partials.sums[piece.entries].view(of_rows).copy_(sums.view(of_heads).transpose(0, 1))
        target = self._partials.outputs[piece.entries].view(*of_rows, dim)
        target.copy_(outputs.view(*of_heads, dim).transpose(0, 1))

    def _private(self, piece: PrivatePiece, q: torch.Tensor, layer: int) -> None:
        store, group = self.store, self._group
        batch, dim = piece.count * store.kv_heads, store.head_dim
        queries = self._scratch.take("queries", (piece.count, self.heads, dim), q.dtype)
        torch.index_select(q, 0, piece.rows, out=queries)
        scores = self._scratch.take("scores", (batch, group, piece.tokens))
        keys = self._products.load(piece.gather(piece.keys[layer]))
        self._products.scores(scores, queries.view(batch, group, dim), keys.flatten(0, 1))
        if piece.masked is not None:
            by_chunk = scores.view(piece.count, self.heads, piece.tokens)
            partial = by_chunk.index_select(0, piece.masked).masked_fill_(piece.mask, -torch.inf)
            by_chunk.index_copy_(0, piece.masked, partial)
        peaks = self._partials.peaks[piece.entries].view(batch, group)
        torch.amax(scores, -1, out=peaks)
        weights = scores.sub_(peaks.clamp_(min=LEAST).unsqueeze(-1)).exp_()
        torch.sum(weights, -1, out=self._partials.sums[piece.entries].view(batch, group))
        values = self._products.load(piece.gather(piece.values[layer]))
        outputs = self._partials.outputs[piece.entries].view(batch, group, dim)
        self._products.outputs(outputs, weights, values.flatten(0, 1))

    def _limits(self) -> Limits:
        store = self.store
        budget = _CPU_BYTES if store.device.type == "cpu" else _GPU_BYTES
        scores = self.heads * store.chunk_size * 4
        chunks = budget // (scores + 2 * self.heads * store.head_dim * 4)
        if self._products.loads:
            chunks = min(chunks, _LOAD_BYTES // (store.kv_heads * store.chunk_size * store.head_dim * 4))
        return Limits(max(1, chunks), max(1, budget // scores))
