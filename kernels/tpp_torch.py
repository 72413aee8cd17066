"""Two-phase partition (TPP) decode attention in PyTorch (section 3.2 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.compensation import CompensationTokens
from chunkbench.kernels.integers import NOWHERE, Ints
from chunkbench.kernels.items import PromptRows, items_of_forest
from chunkbench.kernels.merge import FLOAT32_MIN, Partials
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.planners import Planner, node_wise
from chunkbench.kernels.products import Scratch, products_for
from chunkbench.kernels.work import Limits, PrivatePiece, SharedPiece, Work, make_work

# Bytes that a piece writes and soon reads again. On a CPU they must fit into the cache, but be enough to hide the few
# microseconds that each PyTorch call costs. A GPU needs few, large launches instead.
_CPU_BYTES = 8 << 20
_GPU_BYTES = 256 << 20
# Bytes of K or V of a piece after conversion, if the products need one.
_LOAD_BYTES = 8 << 20


class TppTorch:
    """Decode attention over the chunks of a store.

    Chunk-first phase: for chunks that several sequences cover, the queries of these sequences form a matrix, so K and V
    are read once for all of them. Sequence-first phase: all other chunks of all sequences, in one batch, as views of
    the slabs. Both phases write partial results (O, m, n) in float32, and a merge at the end combines them. `planner`:
    None stands for `node_wise`. `flat` skips the first phase, so every sequence reads all of its chunks by itself.

    `plan` makes all work descriptors. `decode` does not wait for the device, and does not allocate once its buffers
    have their final size. If a score is +inf, the result is NaN.
    """

    def __init__(self, store: ChunkStore, heads: int, planner: Planner | None = None) -> None:
        self.store = store
        self.heads = heads
        self._planner = planner or node_wise
        self._group = heads // store.kv_heads
        self._scratch = Scratch(store.device)
        self._products = products_for(store.dtype, store.device, store.head_dim, self._scratch, store.kv_dtype)
        self._partials = Partials(heads, store.head_dim, store.device)
        self._plan: Plan | None = None
        self._prompts: tuple[PromptRows, ...] = ()
        self._work: Work | None = None
        self._compensation: CompensationTokens | None = None

    @property
    def work_items(self) -> int:
        """Number of pieces (independent batches of matrix products) of the current plan."""
        return 0 if self._work is None else len(self._work.shared) + len(self._work.private)

    def plan(
        self,
        plan: Plan,
        prompts: Sequence[PromptRows] = (),
        *,
        window: int | None = None,
        compensation: CompensationTokens | None = None,
    ) -> None:
        if window is not None:
            raise ValueError(f"a window of {window} tokens needs another kernel than PyTorch's")
        self._plan_items(plan, prompts)
        if compensation is not None:
            self._compensate(compensation)

    def _plan_items(self, plan: Plan, prompts: Sequence[PromptRows]) -> None:
        self._prompts = tuple(prompts)
        if len(plan.order) == 0:
            self._plan = self._work = None
            return
        if plan is self._plan and self._work is not None:
            self._work.refresh(plan.last_tokens)
            return
        items = items_of_forest(plan, self._planner(plan, self._group))
        self._work = make_work(plan, items, self.store, self._limits())
        self._partials.reset(self._work.rows, len(plan.last_tokens))
        self._plan = plan

    def _compensate(self, tokens: CompensationTokens) -> None:
        self._compensation = tokens if (tokens.entries != NOWHERE).any() else None
        if self._work is not None and self._plan is not None:
            rows = torch.from_numpy(self._compensated(len(self._plan.order))).to(self.store.device)
            self._partials.reset(torch.cat([self._work.rows, rows]), len(self._plan.order))

    def decode(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0, sinks: torch.Tensor | None = None) -> None:
        """Compute attention of q `[b, h, d]` in a layer, scaled by 1/sqrt(d), and write it to out `[b, h, d]`. Raises
        ValueError for sinks."""
        if sinks is not None:
            raise ValueError("attention sinks need kernel='native'")
        row = decoding = len(q) - sum(prompt.count for prompt in self._prompts)
        for prompt in self._prompts:
            rows = slice(row, row + prompt.count)
            self._run_prompt(prompt, q[rows], out[rows], layer, row)
            row = rows.stop
        if decoding == 0:
            return
        assert self._work is not None
        q, out = q[:decoding], out[:decoding]
        q = q.to(self._products.dtype)
        for shared in self._work.shared:
            self._run_shared(shared, q, layer)
        for private in self._work.private:
            self._run_private(private, q, layer)
        if self._compensation is not None:
            self._run_compensation(self._compensation, q, layer)
        self._partials.merge(out)

    def _compensated(self, rows: int) -> Ints:
        """Indices of the rows with a compensation token, among the first `rows` rows."""
        entries = self._compensation.entries[:rows] if self._compensation is not None else np.full(rows, NOWHERE)
        return np.flatnonzero(entries != NOWHERE)

    def _run_compensation(self, tokens: CompensationTokens, q: torch.Tensor, layer: int) -> None:
        """Write the partial results of the compensation tokens, after all other partial results."""
        rows = self._compensated(len(q))
        keys, values = self._means(tokens, rows, layer)
        queries = q[torch.from_numpy(rows)].float().view(len(rows), self.store.kv_heads, self._group, -1)
        scores = torch.einsum("nhgd,nhd->nhg", queries, keys) * self.store.head_dim**-0.5
        scores += torch.from_numpy(tokens.biases[rows])[:, None, None]
        last = slice(len(self._partials.rows) - len(rows), None)
        self._partials.peaks[last] = scores.flatten(1)
        self._partials.sums[last] = 1
        self._partials.outputs[last] = values.repeat_interleave(self._group, 1)

    def _means(self, tokens: CompensationTokens, rows: Ints, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[n, h_kv, d]`, float32, of the compensation tokens of some rows."""
        sums = tokens.sums[torch.from_numpy(tokens.entries[rows]), layer : layer + self.store.kv_heads]
        means = sums * torch.from_numpy(tokens.shares[rows])[:, None, None, None]
        return means[:, :, 0], means[:, :, 1]

    def _run_prompt(self, prompt: PromptRows, q: torch.Tensor, out: torch.Tensor, layer: int, row: int) -> None:
        """Causal attention of q `[n, h, d]` of a prompt over a copy of K and V of all its tokens so far. `row`: number
        of the first row."""
        store, tokens = self.store, prompt.first + prompt.count
        keys, values = store.read(prompt.chunks[: -(-tokens // store.chunk_size)], tokens, layer)
        seen = torch.ones(prompt.count, tokens, dtype=torch.bool, device=q.device).tril(prompt.first)
        if self._compensation is not None and self._compensation.entries[row] != NOWHERE:
            key, value = self._means(self._compensation, np.array([row]), layer)
            keys = torch.cat([key.transpose(0, 1).to(keys.dtype), keys], 1)
            values = torch.cat([value.transpose(0, 1).to(values.dtype), values], 1)
            hidden = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf)
            bias = torch.full((prompt.count, 1), float(self._compensation.biases[row]), dtype=q.dtype)
            seen = torch.cat([bias, hidden], 1)
        by_head = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            keys.unsqueeze(0),
            values.unsqueeze(0),
            attn_mask=seen,
            enable_gqa=self._group > 1,
        )
        out.copy_(by_head[0].transpose(0, 1))

    def _run_shared(self, piece: SharedPiece, q: torch.Tensor, layer: int) -> None:
        store, group = self.store, self._group
        kv_heads, dim = store.kv_heads, store.head_dim
        rows = len(piece.rows)
        by_head = q.index_select(0, piece.rows).view(rows, kv_heads, group, dim).transpose(0, 1)
        queries = by_head.reshape(kv_heads, rows * group, dim)
        scores = self._scratch.take("scores", (len(piece.keys[layer]), kv_heads, rows * group, store.chunk_size))
        parts = scores.unbind(0)
        for part, keys in zip(parts, piece.keys[layer], strict=True):
            self._products.scores(part, queries, self._products.load(keys))
        peaks = scores.amax((0, 3)).clamp_(min=FLOAT32_MIN)
        sums = scores.sub_(peaks.unsqueeze(-1)).exp_().sum((0, 3))
        outputs = self._scratch.take("outputs", (kv_heads, rows * group, dim))
        for index, (part, values) in enumerate(zip(parts, piece.values[layer], strict=True)):
            self._products.outputs(outputs, part, self._products.load(values), add=index > 0)
        by_row = (rows, kv_heads, group)
        by_kv_head = (kv_heads, rows, group)
        self._partials.peaks[piece.entries].view(by_row).copy_(peaks.view(by_kv_head).transpose(0, 1))
        self._partials.sums[piece.entries].view(by_row).copy_(sums.view(by_kv_head).transpose(0, 1))
        target = self._partials.outputs[piece.entries].view(*by_row, dim)
        target.copy_(outputs.view(*by_kv_head, dim).transpose(0, 1))

    def _run_private(self, piece: PrivatePiece, q: torch.Tensor, layer: int) -> None:
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
        weights = scores.sub_(peaks.clamp_(min=FLOAT32_MIN).unsqueeze(-1)).exp_()
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
