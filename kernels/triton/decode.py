"""Decode attention on the GPU over a chunk store: the two-phase partition and paged attention, both by `attention`.

The difference between the two is which items there are, that is, the algorithm; the loops are the same.
"""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
import torch

from chunkbench.kernels.items import Items, items_of_forest, items_of_tables
from chunkbench.kernels.triton import capability, constants
from chunkbench.kernels.triton.attention import merge_rows, partial_results
from chunkbench.kernels.triton.buffers import Buffers, Rooms
from chunkbench.kernels.triton.planner import Shape, describe, room_to_grow, spread
from chunkbench.kernels.triton.store import TritonStore
from chunkbench.kernels.triton.tuning import Tuning, chosen
from chunkbench.kvcache.integers import Ints
from chunkbench.kvcache.plan import Plan

_LOG2E = log2(np.e)


def _end(places: Ints, shape: Shape) -> int:
    return int(places.max(initial=0)) + 1 + shape.growth


class TritonDecode:
    """Decode attention over items of a store; `make` before `decode`.

    `decode` neither waits for the device nor allocates, and what it launches reads all that changes from memory: a CUDA
    graph of it serves later plans as well, for as long as `generation` stays what it was, and with q and out that have
    room for more rows than there are. `reserve` makes room beforehand.
    """

    def __init__(self, store: TritonStore, heads: int, tuning: Tuning | None = None) -> None:
        self.store = store
        self.heads = heads
        self.generation = 0
        """Changes when buffers were replaced or a launch needs what an earlier one did not have."""
        self.work_items = 0
        """Items of the current plan; each runs once for every KV head."""
        self._sizes = sizes = constants.Sizes(heads, store.kv_heads, store.head_dim, store.chunk_size, store.dtype)
        device = store.device
        on_gpu = device.type == "cuda"
        self._tuning = tuning or chosen(capability(device) if on_gpu else 90, store.head_dim)
        processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 4
        self._shape = Shape(
            kv_heads=store.kv_heads,
            group=sizes.group,
            chunk_size=store.chunk_size,
            multiprocessors=processors,
            blocks=self._tuning.blocks,
            narrow_blocks=self._tuning.narrow_blocks,
            narrow=constants.narrow(sizes.group),
            lanes=self._tuning.wide,
            head_tokens=4 / store.dtype.itemsize,
            tails=not self._tuning.in_place,
        )
        self._partial_constants = [constants.partial_results(sizes, self._tuning, wide) for wide in (False, True)]
        self._merge_constants = constants.merge_rows(sizes, self._tuning)
        self._wide = self._merges = False
        self._grid = 0  # items that a launch has programs for
        self._buffers = Buffers(Rooms(0, 0, 0, 0, 0), store, heads)
        self._tokens = store.tokens
        self._own = self._left = np.empty(0, np.int64)  # by row: its own item, if any; chunks that its run can take yet

    def reserve(self, rows: int, chunks: int, items: int = 0) -> None:
        """Make room for plans of so many rows and chunks, so that `generation` need not change while they suffice.

        A launch then has all that any plan needs: the large tile, the merge, and programs for `items` (0: as many as
        forests of so many rows are usually cut into).
        """
        shape = self._shape
        items = items or 2 * rows + 4 * shape.multiprocessors * shape.blocks // shape.kv_heads
        self._grow(Rooms(items, rows, 32 * rows, 2 * chunks, rows))
        self.store.reserve_rows(rows)
        self._tokens = self.store.tokens
        self._launch_needs(items, wide=True, merges=True)

    def make(self, items: Items, batch: int) -> None:
        """Make the work descriptors of `batch` rows and send them to the device."""
        made = describe(items, batch, self._shape)
        places = spread(made, self._shape)
        rooms = Rooms(len(made.items), len(made.order), made.slots, _end(places, self._shape), batch)
        self._grow(rooms).fill(made, places, *self.store.places(made.chunks))
        self._launch_needs(len(made.items), made.widest() * self._shape.group > self._shape.narrow, made.merges)
        self.work_items = len(made.items)
        own = np.flatnonzero(made.items[:, 5] >= 0)
        self._own = np.full(batch, -1)
        self._own[made.items[own, 5]] = own
        self._left = room_to_grow(made, self._own, self._shape)

    def extend(self, rows: Ints, chunks: Ints) -> bool:
        """Let the own runs of some rows end with one more chunk each, all else staying as it was made.

        A fraction of the work of `make`, and what most steps of steady decoding need. False, and nothing is changed,
        where a row has no run of its own or it has no room left.
        """
        if (self._left[rows] < 1).any():
            return False
        self._left[rows] -= 1
        host, own = self._buffers.host, self._own[rows]
        apart = own >= 0
        at = np.empty_like(rows)
        for table, index, column, these in (("items", own, 0, apart), ("rows", rows, 2, ~apart)):
            entries, picked = host[table], index[these]
            at[these] = entries[picked, column] + entries[picked, column + 1]
            entries[picked, column + 1] += 1
        host["key_places"][at], host["value_places"][at] = self.store.places(chunks)
        self._buffers.send()
        return True

    def decode(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0) -> None:
        """Attention of q `[b, h, d]` over the planned contexts of a layer into out `[b, h, d]`, scaled by 1/sqrt(d).

        Both of the store's dtype and device. With more rows than were planned, the rest of out is left alone.
        """
        store, tuning, views = self.store, self._tuning, self._buffers.device
        if q.stride(-1) != 1:
            q = q.contiguous()
        target = out if out.stride(-1) == 1 else out.contiguous()  # with what is in it: some rows may not be ours
        common: dict[str, Any] = {
            "q": q,
            "out": target,
            "q_row": q.stride(0),
            "q_head": q.stride(1),
            "out_row": target.stride(0),
            "out_head": target.stride(1),
            "scale": store.head_dim**-0.5 * _LOG2E,
            "keys": store.slabs[0].keys[layer],
            "values": store.slabs[0].values[layer],
            "key_places": views["key_places"],
            "value_places": views["value_places"],
            "rows": views["rows"],
            "folds": views["folds"],
            "tokens": store.tokens,
            "partial_out": views["partial_out"],
            "partial_lse": views["partial_lse"],
        }
        partial_results[(self._grid * store.kv_heads,)](
            **common,
            items=views["items"],
            order=views["order"],
            counters=views["counters"],
            **self._partial_constants[self._wide],
            num_warps=tuning.warps,
        )
        if self._merges and not tuning.in_place:
            merge_rows[(min(q.shape[0], self._buffers.rooms.batch) * store.kv_heads,)](
                **common,
                **self._merge_constants,
                num_warps=tuning.merge_warps,
            )
        if target is not out:
            out.copy_(target)

    def _launch_needs(self, items: int, wide: bool, merges: bool) -> None:
        """Launches never need less than they did, so that a captured one serves as many plans as it can."""
        before = self._grid, self._wide, self._merges
        self._grid = max(self._grid, items)
        self._wide, self._merges = self._wide or wide, self._merges or merges
        self.generation += before != (self._grid, self._wide, self._merges)

    def _grow(self, needed: Rooms) -> Buffers:
        if not self._buffers.rooms.enough_for(needed):
            self._buffers = Buffers(self._buffers.rooms.grown_to(needed), self.store, self.heads)
            self.generation += 1
        return self._buffers

    def _follow(self, chunks: Ints, tokens: Ints) -> None:
        """Let the store's rows end where they do; its buffers may be others then, which launches read as well."""
        self.store.follow(chunks, tokens)
        if self.store.tokens is not self._tokens:
            self._tokens = self.store.tokens
            self.generation += 1


class TppTriton(TritonDecode):
    """Two-phase partition (section 3.2 of the paper) over a forest; the interface is that of `TppTorch`.

    `chunk_first=False` leaves the first phase out: every sequence reads all of its chunks for itself.
    """

    def __init__(self, store: TritonStore, heads: int, chunk_first: bool = True, tuning: Tuning | None = None) -> None:
        super().__init__(store, heads, tuning)
        self.chunk_first = chunk_first
        self._version = -1

    def plan(self, plan: Plan) -> None:
        """Make the work descriptors of a plan; of the plan of last time, or one grown from it, only what is new."""
        if plan.version != self._version:
            grown = plan.growth
            known = grown is not None and grown.of == self._version and self.extend(grown.rows, grown.chunks)
            if not known:
                self.make(items_of_forest(plan, self.chunk_first), len(plan.order))
            self._version = plan.version
        self._follow(plan.last_chunks, plan.last_tokens)


class PagedTriton(TritonDecode):
    """Paged attention over block tables: every sequence reads all of its blocks for itself; blocks are chunks."""

    def __init__(self, store: TritonStore, heads: int, tuning: Tuning | None = None) -> None:
        super().__init__(store, heads, tuning)
        self._blocks = np.empty((0, 0), np.int64)
        self._used = np.empty(0, np.int64)

    def plan(self, table: np.ndarray, lengths: np.ndarray) -> None:
        """Follow block tables `[b, blocks]` and lengths `[b]`; rebuilt only when a sequence has other blocks."""
        size = self.store.chunk_size
        used = -(-lengths.astype(np.int64) // size)
        blocks = np.where(np.arange(table.shape[1]) < used[:, None], table, -1)
        last = table[np.arange(len(used)), used - 1].astype(np.int64)
        if not np.array_equal(blocks, self._blocks):
            if not self._grows(blocks, used, last):
                self.make(items_of_tables(table[blocks >= 0].astype(np.int64), used, np.arange(len(used))), len(used))
            self._blocks, self._used = blocks, used
        self._follow(last, lengths - (used - 1) * size)

    def _grows(self, blocks: np.ndarray, used: Ints, last: Ints) -> bool:
        """Whether some sequences have one block more and all else is as it was, and there was room for that."""
        if blocks.shape != self._blocks.shape:
            return False
        rows = np.flatnonzero(used != self._used)
        before = blocks.copy()
        before[rows, used[rows] - 1] = -1
        begun = bool((used[rows] == self._used[rows] + 1).all()) and np.array_equal(before, self._blocks)
        return begun and self.extend(rows, last[rows])
