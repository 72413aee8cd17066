"""Latent attention over a prefix tree: latents of all tokens, and expanded K and V of chunks that many sequences share.

`chunkbench.latent` explains the absorbed and the expanded form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tokens import Tokens
from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels import triton
from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kernels.integers import Bools, Ints, ranges
from chunkbench.kernels.items import Items
from chunkbench.kernels.latent import Projections
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.planners import Planner

if TYPE_CHECKING:
    from chunkbench.kernels.triton.decode import TppTriton

_CHUNKS_AT_A_TIME = 8
"""Number of chunks whose K and V are expanded at a time, because their float32 numbers take much memory."""
LatentKernel = Literal["auto", "native", "triton"]
"""`auto`: native on a CPU, Triton on a GPU."""


class LatentAttention:
    """A cache of the latents of sequences that share prefixes; one layer, on the device of the projections.

    With `expanded` it stores expanded K and V in place of latents. `planner`: see `kernels.planners`; default: the
    two-phase partition. Raises ValueError for a shape that the kernel does not support.
    """

    def __init__(
        self,
        projections: Projections,
        chunk_size: int,
        share: bool = True,
        planner: Planner | None = None,
        expanded: bool = False,
        kernel: LatentKernel = "auto",
    ) -> None:
        self.projections = projections
        self.expanded = expanded
        native = projections.device.type == "cpu" if kernel == "auto" else kernel == "native"
        made = self._new_parts(native, chunk_size, planner, expanded)
        self.store: ChunkStore = made[0]
        self.kernel: TppNative | TppTriton = made[1]
        self.tree = PrefixTree(chunk_size, ChunkPool(None, self.store.grow), share=share)

    def _new_parts(
        self, native: bool, chunk_size: int, planner: Planner | None, expanded: bool
    ) -> tuple[ChunkStore, TppNative | TppTriton]:
        """A store of latents or of expanded K and V, and a kernel over it."""
        projections, shape = self.projections, self.projections.shape
        scale, heads = shape.key_dim**-0.5, projections.heads if expanded else 1
        if native:
            key_dim, values = (shape.key_dim, shape.v) if expanded else (shape.width, shape.kv_rank)
            packed = PackedStore(chunk_size, heads, key_dim, projections.dtype, value_dim=values, latent=not expanded)
            return packed, TppNative(packed, projections.heads, planner, scale)
        # Imported here because importing Triton takes a second and only a GPU needs it.
        from chunkbench.kernels.triton.decode import TppTriton
        from chunkbench.kernels.triton.store import TritonStore

        unfit = triton.why_not_latent(projections.dtype, shape, chunk_size)
        if unfit:
            raise ValueError(f"the GPU kernel cannot compute this: {unfit}")
        form = shape.nope if expanded else shape.kv_rank, projections.dtype, projections.device
        store = TritonStore(chunk_size, heads, *form, rope=shape.rope, latent=not expanded)
        return store, TppTriton(store, projections.heads, planner, scale=scale)

    def add_sequence(self, tokens: Tokens, latents: torch.Tensor) -> int:
        """Add a sequence with its prompt and return its id. `latents` `[n, kv_rank + rope]` are those of the tokens
        after the first `tree.match(tokens)`."""
        joined = self.tree.join(tokens)
        self._written(joined.chunks)
        chunks, size = joined.chunks, _CHUNKS_AT_A_TIME * self.store.chunk_size
        for n, first in enumerate(range(0, len(latents), size)):
            some = chunks[n * _CHUNKS_AT_A_TIME :]
            self.store.fill(some, *self._tensors(latents[first : first + size]))
        return joined.sequence

    def append(self, tokens: Tokens, latents: torch.Tensor) -> None:
        """Add a token with its latents `[b, kv_rank + rope]` to every sequence."""
        appended = self.tree.append(tokens)
        self._written(appended.chunks)
        self.store.append(appended, *self._tensors(latents))

    def truncate(self, sequence: int, length: int) -> None:
        copy = self.tree.truncate(sequence, length)
        if copy is not None:
            self._written(np.array([copy.target]))
            self.store.copy(*copy)

    def leave(self, sequence: int) -> None:
        self.tree.leave(sequence)

    @property
    def kv_bytes(self) -> int:
        return self.tree.live_chunks * self.store.chunk_bytes

    @property
    def work_items(self) -> int:
        return self.kernel.work_items

    def plan(self) -> None:
        self.kernel.plan(self.tree.plan())

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        """Attention of q `[b, h, d]` in the form of the store. out is `[b, h, kv_rank]`, or expanded `[b, h, v]`."""
        self.kernel.decode(q, out)

    def _written(self, chunks: Ints) -> None:
        """These chunks get other tokens."""

    def _tensors(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.expanded:
            return self.projections.expand(latents)
        return latents[:, None], latents[:, None, : self.store.value_dim]


class MixedAttention(LatentAttention):
    """Latents, and expanded K and V of the chunks that at least `expand_from` sequences share. Queries attend to these
    chunks in the expanded form, and to all others in the absorbed one. With the break-even of the machine's rates as
    `expand_from`, this is TyphoonMLA (arXiv 2509.21081).

    `plan` makes the expanded copies, and drops those of chunks that are gone or that fewer sequences share.
    """

    def __init__(
        self, projections: Projections, chunk_size: int, expand_from: float = 2, kernel: LatentKernel = "auto"
    ) -> None:
        super().__init__(projections, chunk_size, kernel=kernel)
        self._expand_from = max(2.0, expand_from)
        native = isinstance(self.kernel, TppNative)
        self._copies, self._expanded_kernel = self._new_parts(native, chunk_size, None, expanded=True)
        both = _NativeBoth if native else _TritonBoth
        self._both = both(self.kernel, self._expanded_kernel, projections)  # type: ignore[arg-type]
        self._pool = ChunkPool(None, self._copies.grow)
        self._places: dict[int, int] = {}  # id of a chunk -> that of its expanded copy
        self._plan: tuple[Plan, int] | None = None  # the last plan, and its number of threads
        self._rest: Plan | None = None  # what is read in the absorbed form
        self._numbers = 0, 0  # of flat queries and of flat outputs

    @property
    def kv_bytes(self) -> int:
        return super().kv_bytes + len(self._places) * self._copies.chunk_bytes

    @property
    def work_items(self) -> int:
        return self.kernel.work_items + (self._expanded_kernel.work_items if self._places else 0)

    def plan(self) -> None:
        plan = self.tree.plan()
        now = plan, torch.get_num_threads()
        if self._plan is None or now[0] is not self._plan[0] or now[1] != self._plan[1]:
            wide = plan.ends - plan.begins >= self._expand_from
            self._expand(plan, wide)
            self._rest = _only(plan, ~wide) if wide.any() else plan
            shape, queries = self.projections.shape, len(plan.order) * self.projections.heads
            self._numbers = queries * (shape.key_dim + shape.width), queries * (shape.v + shape.kv_rank)
            self._plan = now
            self._both.new_rows(len(plan.order))
        assert self._rest is not None
        self.kernel.plan(self._rest)
        if self._places:
            self._both.reserve()

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        """Attention of flat, contiguous tensors: q holds the queries `[b, h, nope + rope]` and then the absorbed ones
        `[b, h, kv_rank + rope]`; out gets `[b, h, v]` and then `[b, h, kv_rank]`. The attention is the first plus W_uv
        times the second. `both_parts` gives these parts. Raises ValueError for tensors of another size or dtype.
        """
        dtype = self.projections.dtype
        fits = (q.numel(), out.numel()) == self._numbers and q.dtype == out.dtype == dtype
        if not fits or not (q.is_contiguous() and out.is_contiguous()):
            raise ValueError(f"q and out are contiguous, {dtype}, of {self._numbers[0]} and {self._numbers[1]} numbers")
        self._both.decode(q, out, bool(self._places))

    def _written(self, chunks: Ints) -> None:
        gone = self._places.keys() & chunks.tolist()
        if gone:
            self._pool.release(self._places.pop(chunk) for chunk in gone)
            self._plan = None

    def _expand(self, plan: Plan, wide: Bools) -> None:
        """Make the expanded copies of the wide segments, and the items that read them."""
        lengths = plan.lengths[wide]
        chunks = plan.chunks[ranges(plan.starts[:-1][wide], lengths)]
        kept = set(chunks.tolist())
        gone = [chunk for chunk in self._places if chunk not in kept]
        self._pool.release(self._places.pop(chunk) for chunk in gone)
        new = [chunk for chunk in chunks.tolist() if chunk not in self._places]
        for chunk, place in zip(new, self._pool.allocate(len(new)), strict=True):
            k, v = self.projections.expand(self.store.keys(chunk)[0])
            self._copies.fill(np.array([place]), k, v)
            self._places[chunk] = place
        if not len(lengths):
            return
        places = np.array([self._places[chunk] for chunk in chunks.tolist()])
        widths = (plan.ends - plan.begins)[wide]
        first = np.cumsum(lengths) - lengths
        full, before = np.full(len(lengths), -1), plan.before[wide]
        items = Items(places, plan.order, first, lengths, plan.begins[wide], widths, full, before)
        self._expanded_kernel.make(items, len(plan.order))


class _NativeBoth:
    """The native kernels of both forms, whose results are scaled by the weights of their tokens."""

    def __init__(self, absorbed: TppNative, expanded: TppNative, projections: Projections) -> None:
        self._absorbed, self._expanded = absorbed, expanded
        size = projections.heads * projections.dtype.itemsize
        self._row_bytes = size * projections.shape.key_dim, size * projections.shape.v
        self._bytes = 0, 0  # of the first part of flat queries, and of flat outputs

    def new_rows(self, rows: int) -> None:
        """The next calls compute this number of sequences, and another plan says what is expanded."""
        self._bytes = rows * self._row_bytes[0], rows * self._row_bytes[1]

    def reserve(self) -> None:
        """Allocate what `decode` needs."""
        self._absorbed.reserve_results()
        self._expanded.reserve_results()

    def decode(self, q: torch.Tensor, out: torch.Tensor, expands: bool) -> None:
        """`expands`: whether any chunk is expanded. If none is, the first part of `out` becomes zero."""
        begins, ends = q.data_ptr(), out.data_ptr()
        addresses = (begins, begins + self._bytes[0]), (ends, ends + self._bytes[1])
        self._absorbed.decode_beside(self._expanded if expands else None, *addresses, self._bytes[1])


class _TritonBoth:
    """The same with Triton's kernels."""

    def __init__(self, absorbed: TppTriton, expanded: TppTriton, projections: Projections) -> None:
        self._absorbed, self._expanded, self._projections = absorbed, expanded, projections
        self._lse = torch.empty(2, 0, projections.heads, device=projections.device)
        """`[2, b, h]`: base-2 logarithms of the sums of both parts; -inf for rows that a part does not have."""

    def new_rows(self, rows: int) -> None:
        self._lse.resize_(2, rows, self._projections.heads).fill_(-torch.inf)

    def reserve(self) -> None:
        return

    def decode(self, q: torch.Tensor, out: torch.Tensor, expands: bool) -> None:
        shape, rows = self._projections.shape, (self._lse.shape[1], self._projections.heads)
        queries = both_parts(q, rows, shape.key_dim, shape.width)
        outs = both_parts(out, rows, shape.v, shape.kv_rank)
        self._absorbed.decode(queries[1], outs[1], lse=self._lse[1])
        if expands:
            self._expanded.decode(queries[0], outs[0], lse=self._lse[0])
            self._absorbed.balance(outs, self._lse)
        else:
            outs[0].zero_()


def both_parts(flat: torch.Tensor, rows: tuple[int, int], first: int, second: int) -> list[torch.Tensor]:
    """The two tensors `[*rows, first]` and `[*rows, second]` of a flat one."""
    numbers = rows[0] * rows[1]
    return [
        part.view(*rows, width)
        for part, width in zip(flat.split([numbers * first, numbers * second]), (first, second), strict=True)
    ]


def _only(plan: Plan, kept: Bools) -> Plan:
    """The plan with some of its segments. If a segment is left out, those before it on its path are, too."""
    lengths: Ints = plan.lengths[kept]
    return replace(
        plan,
        chunks=plan.chunks[ranges(plan.starts[:-1][kept], lengths)],
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        begins=plan.begins[kept],
        ends=plan.ends[kept],
    )
