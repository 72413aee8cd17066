"""Decode attention in native code over a packed store: the two-phase partition and paged attention.

Both run the same loops over items (see `planner`). They differ only in the items, that is, in the algorithm: paged
attention is the two-phase partition without its chunk-first phase.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from chunkbench.kernels.compensation import CompensationTokens
from chunkbench.kernels.cpu import isa, required
from chunkbench.kernels.cpu.planner import COLUMNS, Grain, ItemArrays, arrays, cut
from chunkbench.kernels.cpu.store import PackedStore, dtype_name
from chunkbench.kernels.cpu.tensors import reads_tensors
from chunkbench.kernels.integers import NOWHERE, Ints, ranges
from chunkbench.kernels.items import (
    Items,
    PromptRows,
    items_of_forest,
    items_of_prompts,
    together,
)
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.planners import Planner, two_phase
from chunkbench.kernels.query_rows import QueryRows, chunks_of_rows
from chunkbench.kernels.trace import Trace, TracedCall
from chunkbench.kv_dtype import KvDtype, kv_bytes

if TYPE_CHECKING:
    from chunkbench.kernels.cpu._native import DecodePlan


def chosen_isa() -> str:
    """The instruction set in use: `CHUNKBENCH_ISA` if set, else the best. Raises ValueError if the CPU lacks the
    instruction set."""
    requested = os.environ.get("CHUNKBENCH_ISA", "")
    usable = required().isas()
    if requested and requested not in usable:
        raise ValueError(f"CHUNKBENCH_ISA={requested}: this CPU can run {', '.join(usable)}")
    return requested or isa()


def read_mode(dtype: torch.dtype, kv_dtype: KvDtype, isa: str) -> tuple[bool, bool]:
    """Two flags for an item of one row: whether to prefetch its K and V, and whether to read several parts side by
    side.

    Only Intel's CPUs read several parts side by side: AMD's CPUs are slower with several streams of addresses. The
    kernel prefetches if numbers must be widened, because the CPU's prefetches are then late. The kernel also prefetches
    with AVX-512 or AMX, except on Intel's CPUs without bfloat16 products. Such CPUs prefetch several streams by
    themselves. docs/notes/cpu-tried.md has figures.
    """
    features = required().cpu_features()
    intel = features["intel"]
    widens = kv_dtype != "same" or dtype == torch.float16 or (dtype == torch.bfloat16 and not isa.endswith("bf16"))
    gains = isa.startswith(("avx512", "amx")) and (not intel or features["avx512_bf16"])
    return widens or gains, intel


class PackedChunks(Protocol):
    """Chunks in the layout of `src/attention.h`: a `PackedStore`, or the blocks of another engine."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def value_dim(self) -> int:
        """Head dimension of V."""
        ...

    @property
    def kv_dtype(self) -> KvDtype: ...
    @property
    def form(self) -> str:
        """`kv_dtype`, or `latent` if chunks hold K alone and V is a part of it."""
        ...

    @property
    def layer_bytes(self) -> int:
        """Bytes from the chunks of a layer to those of the next layer."""
        ...

    def chunk_addresses(self, chunks: Ints) -> Ints:
        """Addresses at which chunks of layer 0 begin."""
        ...


class StoredHeads:
    """Makes adjacent heads of a store look like one layer with `kv_heads` KV heads. Each layer of the store has one
    head."""

    def __init__(self, store: PackedStore, kv_heads: int) -> None:
        self._store = store
        self.kv_heads = kv_heads
        self.dtype, self.head_dim, self.chunk_size = store.dtype, store.head_dim, store.chunk_size
        self.kv_dtype, self.form, self.value_dim = store.kv_dtype, store.form, store.value_dim
        self.layer_bytes = store.layer_bytes
        self.chunk_addresses = store.chunk_addresses


class NativeDecode:
    """Decode attention over items of a store. Call `make` before `decode`. `scale`: factor of the scores; default:
    1/sqrt(d). `softcap`: a scaled score x becomes softcap * tanh(x / softcap); 0: it stays (Gemma 2)."""

    def __init__(self, store: PackedChunks, heads: int, scale: float | None = None, softcap: float = 0.0) -> None:
        self.store = store
        self.heads = heads
        self._isa = chosen_isa()
        self._fetch_early, self._side_by_side = read_mode(store.dtype, store.kv_dtype, self._isa)
        self._scale = store.head_dim**-0.5 if scale is None else scale
        self._softcap = softcap
        reads_tensors()
        self._work: DecodePlan | None = None
        self._made: tuple[ItemArrays, int] | None = None  # the items of `_work`, and its number of rows
        self._threads = 0  # number of threads for which the items were cut
        self._last_tokens: Ints | None = None
        self._compensation: CompensationTokens | None = None
        self.work_items = 0
        """Number of items of the current plan. Each item runs once for every KV head, several heads at a time."""

    def make(self, items: Items, batch: int) -> None:
        """Make the work descriptors for `batch` rows."""
        store = self.store
        self._threads = torch.get_num_threads()
        grain = Grain(self._threads, store.kv_heads, self.heads // store.kv_heads)
        flat = arrays(*cut(items, grain), batch)
        self._made = flat, batch
        before, self._work = self._work, self._descriptors(store.chunk_addresses(flat.chunks))
        if before is not None:
            self._work.take_memory(before)
        self.work_items = len(flat.items)

    def _descriptors(self, addresses: Ints) -> DecodePlan:
        """The work descriptors of the last `make` for chunks at these addresses."""
        assert self._made is not None
        store, (flat, batch) = self.store, self._made
        work: DecodePlan = required().DecodePlan(
            dtype_name(store.dtype),
            self.heads,
            store.kv_heads,
            store.head_dim,
            store.chunk_size,
            store.form,
            COLUMNS,
            flat.items.view(np.int64).reshape(-1, len(COLUMNS)),
            addresses,
            flat.rows,
            flat.folds,
            flat.partial_items,
            batch,
            len(flat.folds),
            self._threads,
            self._fetch_early,
            self._side_by_side,
            self._isa,
            store.value_dim,
        )
        return work

    def set_last_tokens(self, tokens: Ints) -> None:
        """Set the number of tokens in the last chunk of each row's sequence `[b]`, 1..chunk_size."""
        assert self._work is not None
        self._last_tokens = np.ascontiguousarray(tokens, np.int64)
        self._work.set_last_tokens(self._last_tokens)

    def _compensate(self, tokens: CompensationTokens) -> None:
        assert self._work is not None
        self._compensation = tokens if (tokens.entries != NOWHERE).any() else None
        if self._compensation is not None:
            count, stride = len(tokens.sums), tokens.sums.stride(0)
            self._work.set_compensation(tokens.entries, tokens.shares, tokens.biases, count, stride)

    def decode(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0, sinks: torch.Tensor | None = None) -> None:
        """Compute scaled attention of q `[rows, h, d]` in a layer, and write it to out `[rows, h, d of V]`.

        q and out have the store's dtype and are on the CPU. Uses as many threads as PyTorch. `sinks` `[h]`, float32: a
        scaled score of each query head that has no V, but counts in the softmax (gpt-oss).
        """
        plain = self._compensation is None and sinks is None and not self._softcap
        if not plain or not self.decode_dense(q, out, layer):
            sums = 0 if self._compensation is None else self._compensation.sums[:, layer:].data_ptr()
            self.decode_at(q, out, layer * self.store.layer_bytes, self._scale, sums, sinks=sinks)

    def decode_at(
        self,
        q: torch.Tensor,
        out: torch.Tensor,
        shift: int,
        scale: float,
        sums: int = 0,
        kv_scales: int = 0,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Like `decode`, for a layer whose chunks lie `shift` bytes after those of the plan. `scale`: factor of the
        scores.

        `sums`: address of the layer's sums for compensation tokens, 0 if there are none. `kv_scales`: address of the
        layer's float32 scales of fp8, those of K and then those of V `[2, h_kv]`; 0 if all are 1. `sinks`: see
        `decode`. q and out need not be contiguous.
        """
        assert self._work is not None
        q = q.contiguous()
        target = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype)
        sinks_at = 0 if sinks is None else sinks.data_ptr()
        addresses = q.data_ptr(), target.data_ptr()
        changes = self._softcap, sinks_at
        self._work.decode(*addresses, scale, torch.get_num_threads(), shift, sums, kv_scales, *changes)
        if target is not out:
            out.copy_(target)

    def decode_dense(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0) -> bool:
        """Like `decode`, but returns False and does nothing unless q and out are contiguous and have the plan's shape
        and dtype.

        The native module checks the tensors itself, all at once (see `cpu.tensors`).
        """
        assert self._work is not None
        shift = layer * self.store.layer_bytes
        return self._work.decode_dense(q, out, self._scale, torch.get_num_threads(), shift)

    def run_layers(self, layers: Sequence[Any], step: Any, chunks: Ints, slots: Ints) -> list[float]:
        """Compute all layers of a model of the Llama family in one native call. Returns the seconds of three parts:
        products, writing K and V, attention. Returns an empty list and does nothing with compensation tokens.

        `layers`: DecoderLayer of the native module, one for each layer of the store. `step`: its StepBuffers, with a
        row for each row of the plan. K and V of row i go to slot `slots[i]` of chunk `chunks[i]`.
        """
        if self._work is None or self._compensation is not None or self._softcap:
            return []
        slots = np.ascontiguousarray(slots, np.int64)
        addresses = self.store.chunk_addresses(chunks)
        return self._work.run_layers(
            layers, step, addresses, slots, self.store.layer_bytes, self._scale, torch.get_num_threads()
        )

    def accumulate(self, q: torch.Tensor, outputs: torch.Tensor, stats: torch.Tensor) -> None:
        """Add attention over the planned tokens of layer 0 to running results. Rows that are not in the plan stay
        unchanged.

        q is `[b, h, d]`. outputs `[b, h, d of V]` holds the sums of weights times V. stats `[b, h, 2]` holds the
        largest score and the sum of weights. outputs and stats are float32 and contiguous. Before the first call set
        outputs to 0, the largest scores to -inf, and the sums of weights to 0. A row's attention is its output divided
        by its sum of weights.
        """
        assert self._work is not None
        assert outputs.is_contiguous()
        assert stats.is_contiguous()
        q = q.contiguous()
        self._work.accumulate(q.data_ptr(), outputs.data_ptr(), stats.data_ptr(), self._scale, torch.get_num_threads())

    def reserve_results(self) -> None:
        """Allocate what `decode_beside` needs, so that its calls allocate nothing."""
        assert self._work is not None
        self._work.reserve_results()

    def decode_beside(
        self, other: NativeDecode | None, q: tuple[int, int], out: tuple[int, int], other_bytes: int
    ) -> None:
        """Attention over the contexts of this plan and of another one with the same rows and heads, in layer 0.

        `q` and `out`: addresses of the other plan's tensor and of this plan's, all contiguous and with the dtype of the
        stores. Writes a part to each; a linear map of each and a sum gives the attention. Without `other`, its part is
        0. `other_bytes`: bytes of its part.
        """
        assert self._work is not None
        work = None if other is None else other._work
        threads = torch.get_num_threads()
        self._work.decode_beside(q[1], out[1], work, q[0], out[0], other_bytes, self._scale, threads)

    def read(self) -> None:
        """Read the planned chunks of layer 0 in the order of `decode`, without arithmetic. Measures the memory."""
        assert self._work is not None
        self._work.read(torch.get_num_threads())

    def trace(self, q: torch.Tensor, out: torch.Tensor, call: TracedCall) -> Trace:
        """Run `decode` of layer 0, or only its reads, or only its arithmetic, and return the time of each unit.

        q and out `[b, h, d]`, out contiguous. After `compute`, out holds no result, because all chunks are read from
        one place.
        """
        assert self._work is not None
        assert out.is_contiguous()
        assert self._made is not None
        work, (flat, _), store = self._work, self._made, self.store
        if call == "compute":
            work = self._descriptors(np.repeat(store.chunk_addresses(flat.chunks[:1]), len(flat.chunks)))
            if self._last_tokens is not None:
                work.set_last_tokens(self._last_tokens)
        threads, q = torch.get_num_threads(), q.contiguous()
        addresses = (0, 0) if call == "read" else (q.data_ptr(), out.data_ptr())
        started = perf_counter()
        table = work.trace(*addresses, self._scale, threads)
        seconds = perf_counter() - started
        numbers = table[:, :4].astype(np.int64)
        first, counts, heads = numbers[:, 0], numbers[:, 1], numbers[:, 2]
        tokens, widths = flat.items["chunk_count"] * store.chunk_size, flat.items["row_count"]
        tails = flat.items["tail_row"]
        if self._last_tokens is not None and len(tails):
            tokens = tokens - np.where(tails < 0, 0, store.chunk_size - self._last_tokens[tails])
        of_unit = np.repeat(np.arange(len(table)), counts)
        items = ranges(first, counts)
        read = np.bincount(of_unit, tokens[items], len(table)).astype(np.int64) * heads
        multiplied = np.bincount(of_unit, (tokens * widths)[items], len(table)).astype(np.int64) * heads
        stored = store.head_dim + (0 if store.form == "latent" else store.value_dim)
        same = store.kv_dtype == "same"
        token_bytes = stored * store.dtype.itemsize if same else kv_bytes(store.head_dim, 1, store.kv_dtype)
        return Trace(
            threads=threads,
            seconds=seconds,
            shared=widths[first] > 1,
            thread=numbers[:, 3],
            begin=table[:, 4],
            ready=table[:, 5],
            end=table[:, 6],
            parts=table[:, 7:],
            read_bytes=read * token_bytes,
            flops=multiplied * 2 * (store.head_dim + store.value_dim) * (self.heads // store.kv_heads),
            place_bytes=int(flat.items["heads"].max()) * store.chunk_size * token_bytes,
        )


class TppNative(NativeDecode):
    """Two-phase partition (section 3.2 of the paper) over a forest, with the interface of `TppTorch`.

    Chunk-first phase: the threads process the items of several rows and write partial results (O, m, n). Sequence-first
    phase: the threads process the items of one row. Such an item folds in the partial results of its row. Then it
    continues with the chunks that only this row covers, and writes the row's output. The planner, by default
    `two_phase`, decides which shared chunks have an item of several rows.
    """

    def __init__(
        self,
        store: PackedChunks,
        heads: int,
        planner: Planner | None = None,
        scale: float | None = None,
        softcap: float = 0.0,
    ) -> None:
        super().__init__(store, heads, scale, softcap)
        self._planner = planner or two_phase
        self._plan: Plan | None = None
        self._query_rows: QueryRows | None = None
        self._window: int | None = None

    def plan(
        self,
        plan: Plan,
        prompts: Sequence[PromptRows] = (),
        rows: Ints | None = None,
        query_rows: QueryRows | None = None,
        window: int | None = None,
        compensation: CompensationTokens | None = None,
    ) -> None:
        """Make the work descriptors of a plan. If the plan is the same as last time, only update the lengths.

        `prompts`: additional rows, one per token of a prompt, after the rows of the plan. Each such row reads its
        sequence up to its token. `rows`: index in q and out of every row; ignored without prompts. `query_rows`: the
        rows of each sequence of the plan; None: one. `window`: tokens that a row reads, its own included; None: all.
        `compensation`: a token for each row, in place of those that it lost.
        """
        several = query_rows if query_rows is not None and (query_rows.counts != 1).any() else None
        tokens = plan.last_tokens if several is None else several.of_sequences(plan.last_tokens)
        if prompts:
            self._plan = None
            items, prompt_tokens = items_of_prompts(prompts, self.store.chunk_size, len(tokens), window)
            if len(tokens):
                items = together(self._items(plan, several), items)
            tokens = np.concatenate([tokens, prompt_tokens])
            sights = self._sights(plan, several, window, prompts)
            if rows is not None:
                tails = np.where(items.tail_row < 0, -1, rows[items.tail_row])
                items = items._replace(rows=rows[items.rows], tail_row=tails)
                order = np.argsort(rows)
                tokens, sights = tokens[order], None if sights is None else sights[order]
            self._make(items, len(tokens), sights)
        elif (
            plan is not self._plan
            or self._threads != torch.get_num_threads()
            or window != self._window
            or not _same(several, self._query_rows)
        ):
            self._make(self._items(plan, several), len(tokens), self._sights(plan, several, window))
            self._plan, self._query_rows, self._window = plan, several, window
        self.set_last_tokens(tokens)
        if compensation is not None:
            self._compensate(compensation)

    def _make(self, items: Items, batch: int, sights: npt.NDArray[np.int64] | None) -> None:
        self.make(items, batch)
        if sights is not None:
            assert self._work is not None
            self._work.set_sights(sights)

    def _items(self, plan: Plan, several: QueryRows | None) -> Items:
        group = self.heads // self.store.kv_heads
        if several is None:
            return items_of_forest(plan, self._planner(plan, group))
        return several.rows_of(items_of_forest(plan, self._planner(plan, group * several.usual)))

    def _sights(
        self, plan: Plan, several: QueryRows | None, window: int | None, prompts: Sequence[PromptRows] = ()
    ) -> npt.NDArray[np.int64] | None:
        """`QueryRows.sights` of all rows, those of prompts last. None if there are no rows, or if all read
        all tokens up to their own."""
        if (several is None and window is None) or not (len(plan.order) or prompts):
            return None
        of_plan = several or QueryRows.alike(len(plan.order), 1)
        made = [of_plan.sights(chunks_of_rows(plan), window)] if len(plan.order) else []
        for prompt in prompts:
            chunks = np.arange(prompt.first, prompt.first + prompt.count) // self.store.chunk_size + 1
            made.append(QueryRows.alike(prompt.count, 1).sights(chunks, window))
        return np.concatenate(made)


def _same(one: QueryRows | None, other: QueryRows | None) -> bool:
    return one is other or (one is not None and one.same_as(other))
