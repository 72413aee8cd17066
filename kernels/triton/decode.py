"""Decode attention on the GPU over a chunk store: the two-phase partition and paged attention.

Both use the kernels of `attention`. They differ only in the items, that is, in the algorithm: paged attention is the
two-phase partition without its chunk-first phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log2
from typing import Any, Protocol

import numpy as np
import torch

from chunkbench.draft import Drafts
from chunkbench.kernels.compensation import CompensationTokens
from chunkbench.kernels.integers import NOWHERE, Bools, Ints
from chunkbench.kernels.items import Items, PromptRows, items_of_forest
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.planners import Planner, two_phase
from chunkbench.kernels.query_rows import QueryRows, chunks_of_rows
from chunkbench.kernels.triton import capability, constants
from chunkbench.kernels.triton.attention import balance, merge_rows, partial_results
from chunkbench.kernels.triton.buffers import Buffers, Capacity, Means, Sights
from chunkbench.kernels.triton.planner import TAIL_TOKENS, Shape, describe, room_to_grow, spread
from chunkbench.kernels.triton.tuning import Tuning, tuning_for

_LOG2E = log2(np.e)
_NO_ROWS = np.empty(0, np.bool_)
UNLIMITED = 1 << 30
"""Window of rows that read all tokens."""


class Places(Protocol):
    """Tells the kernels where chunks lie on the device, and how many tokens the last chunk of each row holds."""

    @property
    def sizes(self) -> constants.Sizes:
        """The shape of the chunks. Its field `heads` is not used."""

    @property
    def device(self) -> torch.device:
        """The device of K and V."""

    @property
    def tokens(self) -> torch.Tensor:
        """`[rows]` int32 on the device: current number of tokens in the last chunk of each row."""

    def places(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Where K and V of chunks lie: offsets from the beginning of the tensors that `layer` returns, in units of 16
        bytes."""

    def reserve_rows(self, rows: int) -> None:
        """Make room in `tokens` for `rows` rows. May replace `tokens`."""

    def follow(self, chunks: Ints, tokens: Ints) -> None:
        """Set the last chunk `[b]` of each row and its number of tokens `[b]`. May replace `tokens`."""

    def layer(self, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a layer: tensors whose memory begins at place 0."""


def _end(places: Ints, shape: Shape) -> int:
    return int(places.max(initial=0)) + 1 + shape.growth


class TritonDecode:
    """Decode attention over items of a store. Call `make` before `decode`.

    `decode` does not wait for the device and does not allocate. Its launches read all changing values from device
    memory. So a captured CUDA graph also works for later plans while `generation` stays the same. The q and out of a
    graph may have more rows than the plan. `reserve` makes room in advance.
    """

    def __init__(self, store: Places, heads: int, tuning: Tuning | None = None, scale: float | None = None) -> None:
        """`scale`: factor of the scores; default: 1/sqrt(d)."""
        self.store = store
        self.generation = 0
        """A number that changes when captured graphs become invalid: when buffers are replaced or launches need more
        than before."""
        self._scale = (store.sizes.head_dim + store.sizes.rope) ** -0.5 if scale is None else scale
        self.work_items = 0
        """Number of items of the current plan. Each item runs once for every KV head."""
        device = store.device
        on_gpu = device.type == "cuda"
        generation = capability(device) if on_gpu else 90
        self._tuning = tuning or tuning_for(generation, store.sizes.head_dim)
        self.sizes = sizes = store.sizes.for_heads(heads, self._tuning.wide)
        """Shape of the chunks, and the number of query heads."""
        self._overlap = on_gpu and constants.overlaps(generation)
        processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 4
        narrow = constants.narrow(sizes.group)
        self._shape = Shape(
            kv_heads=sizes.kv_heads,
            group=sizes.group,
            chunk_size=sizes.chunk_size,
            multiprocessors=processors,
            blocks=self._tuning.blocks,
            narrow_blocks=self._tuning.narrow_blocks if narrow < self._tuning.wide else self._tuning.blocks,
            narrow=narrow,
            lanes=self._tuning.wide,
            head_tokens=8 * sizes.head_dim / sizes.token_bytes,
            tail_tokens=0 if sizes.rope else TAIL_TOKENS,
        )
        self._partial_constants = [
            constants.partial_results(sizes, self._tuning, wide, self._overlap) for wide in (False, True)
        ]
        self._merge_constants = constants.merge_rows(sizes, self._tuning, self._overlap)
        self._merge_warps = constants.merge_warps(sizes, self._tuning)
        self._wide = self._merges = False
        self._drafts = 0  # index in constants.DRAFTS
        self._sights = Sights(0, device)
        self._window = UNLIMITED
        self._means = Means(0, device)
        self._sums: torch.Tensor | None = None
        """Sums of the tokens that rows lost, once any row lost some."""
        self._grid = 0  # number of items for which a launch has programs
        self._buffers = Buffers(Capacity(0, 0, 0, 0, 0), sizes, device)
        self._tokens = store.tokens
        self._own = self._spare = np.empty(0, np.int64)  # by row: own item or -1; chunks that its run can still take

    def reserve(self, rows: int, chunks: int, items: int = 0, drafts: Drafts = "none") -> None:
        """Make room for plans of at most `rows` rows and `chunks` chunks. Such plans then do not change `generation`.

        `items`: smallest number of items for which later launches have programs. 0: estimated from the number of rows.
        Later launches use the large tile and the merge, even if a plan needs neither, and compute these `drafts`.
        """
        shape = self._shape
        items = items or 2 * rows + 4 * shape.multiprocessors * shape.blocks // shape.kv_heads
        self._grow(Capacity(items, rows, 32 * rows, 2 * chunks, rows))
        self.store.reserve_rows(rows)
        self.generation += self.store.tokens is not self._tokens
        self._tokens = self.store.tokens
        self._launch_needs(items, wide=shape.lanes > shape.narrow, merges=True)
        self._verify(drafts, rows)

    def make(self, items: Items, batch: int, compensated: Bools = _NO_ROWS) -> None:
        """Make the work descriptors for `batch` rows and send them to the device. `compensated` `[b]`: rows with a
        compensation token; empty: none."""
        work = describe(items, batch, self._shape, compensated if len(compensated) else None)
        places = spread(work, self._shape)
        self.store.reserve_rows(batch)
        capacity = Capacity(len(work.items), len(work.order), work.slots, _end(places, self._shape), batch)
        self._grow(capacity).fill(work, places, *self.store.places(work.chunks))
        merges = work.merges or len(compensated) > 0
        self._launch_needs(len(work.items), work.widest() * self._shape.group > self._shape.narrow, merges)
        self.work_items = len(work.items)
        own = np.flatnonzero(work.items["tail_row"] >= 0)
        self._own = np.full(batch, -1)
        self._own[work.items["tail_row"][own]] = own
        self._spare = room_to_grow(work, self._own, self._shape)

    def extend(self, rows: Ints, chunks: Ints) -> bool:
        """Add one chunk to each of these rows, without any other change of the descriptors. `chunks[i]` goes to the run
        of chunks that only `rows[i]` reads.

        Takes a fraction of the time of `make`. Returns False and changes nothing if a row has no such run, or its run
        has no room left.
        """
        if (self._spare[rows] < 1).any():
            return False
        self._spare[rows] -= 1
        host, own = self._buffers.host, self._own[rows]
        has_item = own >= 0
        ends = np.empty_like(rows)
        for runs, index, mask in ((host["items"], own, has_item), (host["rows"], rows, ~has_item)):
            selected = index[mask]
            ends[mask] = runs["first_chunk"][selected] + runs["chunk_count"][selected]
            runs["chunk_count"][selected] += 1
        host["key_places"][ends], host["value_places"][ends] = self.store.places(chunks)
        self._buffers.send()
        return True

    def decode(
        self,
        q: torch.Tensor,
        out: torch.Tensor,
        layer: Any = 0,
        scale: float | None = None,
        lse: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Compute attention of q `[b, h, d]` in a layer, and write it to out `[b, h, d of V]`.

        `layer`: argument of `Places.layer` of the store. `scale`: factor of the scores in place of the usual one. q and
        out have the store's dtype and device. They may have more rows than the plan; these rows of out stay unchanged.
        `lse` `[b, h]`, float32: gets the base-2 logarithm of each sum of exponentials of scores. Raises ValueError for
        `sinks` (see `NativeDecode.decode`), which this kernel cannot compute.
        """
        if sinks is not None:
            raise ValueError("the Triton kernel computes attention without sinks")
        store, sizes, tuning, views = self.store, self.sizes, self._tuning, self._buffers.device
        keys, values = store.layer(layer)
        if q.stride(-1) != 1:
            q = q.contiguous()
        target = out if out.stride(-1) == 1 else out.contiguous()  # copies contents: rows beyond the plan must stay
        common: dict[str, Any] = {
            "q": q,
            "out": target,
            "q_row": q.stride(0),
            "q_head": q.stride(1),
            "out_row": target.stride(0),
            "out_head": target.stride(1),
            "scale": (self._scale if scale is None else scale) * _LOG2E,
            "keys": keys,
            "values": values,
            "key_places": views["key_places"],
            "value_places": views["value_places"],
            "tokens": store.tokens,
            "reads": self._sights.reads,
            "hidden": self._sights.hidden,
            "window": self._window,
            "DRAFTS": self._drafts,
            "row_lse": views["partial_lse"] if lse is None else lse,
            "LSE": lse is not None,
            "partial_out": views["partial_out"],
            "partial_lse": views["partial_lse"],
        }
        partial_results[(self._grid * sizes.kv_heads,)](
            **common,
            items=views["items"],
            order=views["order"],
            **self._partial_constants[self._wide],
            num_warps=tuning.warps,
        )
        if self._merges:
            means = self._means
            sums = views["partial_lse"] if self._sums is None else self._sums[:, layer:]
            programs = sizes.heads // self._merge_constants["GROUP"]
            merge_rows[(min(q.shape[0], self._buffers.capacity.batch) * programs,)](
                **common,
                rows=views["rows"],
                folds=views["folds"],
                lost=means.lost,
                shares=means.shares,
                biases=means.biases,
                sums=sums,
                sum_step=sums.stride(0),
                COMPENSATED=self._sums is not None,
                **self._merge_constants,
                num_warps=self._merge_warps,
                launch_pdl=self._overlap,
            )
        if target is not out:
            out.copy_(target)

    def balance(self, outs: Sequence[torch.Tensor], lse: torch.Tensor) -> None:
        """Scale the attention of the same rows over two contexts, `[b, h, d]` each, by the weights of these contexts.
        `lse` `[2, b, h]`: what `decode` wrote; -inf where a context is empty."""
        first, second = outs
        balance[(first.shape[0] * first.shape[1],)](
            first, lse[0], second, lse[1], FIRST=first.shape[2], SECOND=second.shape[2], num_warps=4
        )

    def _launch_needs(self, items: int, wide: bool, merges: bool) -> None:
        """Extend launches to the needs of this plan. Launches never shrink, so that a captured launch works for many
        plans."""
        before = self._grid, self._wide, self._merges
        self._grid = max(self._grid, items)
        self._wide, self._merges = self._wide or wide, self._merges or merges
        self.generation += before != (self._grid, self._wide, self._merges)

    def _verify(self, drafts: Drafts, rows: int) -> None:
        """Let this launch and all later ones compute such drafts of `rows` rows in all."""
        wanted = max(self._drafts, constants.DRAFTS.index(drafts))
        lacks_room = wanted > 0 and rows > self._sights.rows
        if lacks_room:
            self._sights = Sights(rows + rows // 2, self.store.device)
        self.generation += lacks_room or wanted != self._drafts
        self._drafts = wanted

    def _grow(self, needed: Capacity) -> Buffers:
        if not self._buffers.capacity.enough_for(needed):
            self._buffers = Buffers(self._buffers.capacity.grown_to(needed), self.sizes, self.store.device)
            self.generation += 1
        return self._buffers

    def _follow(self, chunks: Ints, tokens: Ints) -> None:
        """Update the last chunk of each row in the store. If this replaces the store's buffers, `generation`
        changes."""
        self.store.follow(chunks, tokens)
        if self.store.tokens is not self._tokens:
            self._tokens = self.store.tokens
            self.generation += 1


class TppTriton(TritonDecode):
    """Two-phase partition (section 3.2 of the paper) over a forest, with the interface of `TppTorch`.

    The default `planner` is `two_phase` with the costs of this GPU. `flat` skips the first phase, so every sequence
    reads all of its chunks by itself.
    """

    def __init__(
        self,
        store: Places,
        heads: int,
        planner: Planner | None = None,
        tuning: Tuning | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(store, heads, tuning, scale)
        self._planner = planner or partial(two_phase, costs=self._shape.costs)
        self._plan: Plan | None = None
        self._query_rows: QueryRows | None = None
        self._lost = _NO_ROWS

    def plan(
        self,
        plan: Plan,
        prompts: Sequence[PromptRows] = (),
        *,
        query_rows: QueryRows | None = None,
        window: int | None = None,
        compensation: CompensationTokens | None = None,
    ) -> None:
        """Make the work descriptors of a plan. If sequences only got new chunks since the last plan, extend its
        descriptors instead.

        Extending avoids the planner, which takes a millisecond for 256 sequences. That is as long as several layers on
        a GPU. On a busy server, some sequence begins a chunk at almost every step.

        `query_rows`: the rows of each sequence; None: one. `window`: tokens that a row reads, its own included; None:
        all. `compensation`: a token for each row, in place of those that it lost. Raises ValueError for prompts, and
        for windows or compensation tokens with several rows of a sequence.
        """
        rows = query_rows or QueryRows.alike(len(plan.order), 1)
        if prompts:
            raise ValueError("the Triton kernel computes no prompts")
        if rows.drafts != "none" and (window is not None or compensation is not None):
            raise ValueError("the Triton kernel computes windows with one query row of a sequence")
        self._verify(rows.drafts if window is None else "chains", rows.total)
        self.generation += self._window != (window or UNLIMITED)
        self._window = window or UNLIMITED
        lost = self._compensate(compensation)
        same_rows = rows.same_as(self._query_rows) and np.array_equal(lost, self._lost)
        if plan is not self._plan or not same_rows:
            grows = self._plan is not None and same_rows and rows.drafts == "none"
            new = plan.growth_since(self._plan) if grows and self._plan is not None else None
            if new is None or not self.extend(*new):
                items = items_of_forest(plan, self._planner(plan, self._shape.group * rows.usual))
                self.make(items if rows.drafts == "none" else rows.rows_of(items), rows.total, lost)
            self._plan, self._query_rows, self._lost = plan, rows, lost
        if not self._drafts:
            self._follow(plan.last_chunks, plan.last_tokens)
            return
        ends = (chunks_of_rows(plan) - 1) * self._shape.chunk_size + plan.last_tokens
        if constants.DRAFTS[self._drafts] == "trees":
            self._sights.send(rows.of_sequences(ends), rows.hidden)
        else:
            self._sights.send(rows.of_sequences(ends) - rows.behind)

    def _compensate(self, tokens: CompensationTokens | None) -> Bools:
        """Send the compensation tokens of the rows, and return which rows have one; empty if none has."""
        if tokens is None:
            self.generation += self._sums is not None
            self._sums = None
            return _NO_ROWS
        lost: Bools = tokens.entries != NOWHERE
        if self._sums is None and not lost.any():
            return _NO_ROWS
        if len(lost) > self._means.rows:
            self._means = Means(2 * len(lost), self.store.device)
            self.generation += 1
        self.generation += self._sums is not tokens.sums
        self._sums = tokens.sums
        self._means.send(tokens)
        return lost if lost.any() else _NO_ROWS
