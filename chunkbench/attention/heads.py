"""Chunks and kernels of caches with two kinds of KV heads: full heads keep a whole sequence, window heads keep a part.

Each kind has its own store, but there is one tree. Layers differ in how many full heads they have, so a store lists its
heads of all layers one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from chunkbench.attention.windows import HeadPolicy, WindowedPool, WindowPlan
from chunkbench.kernels.changes import Append
from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.compensation import CompensationTokens
from chunkbench.kernels.integers import NOWHERE, Ints
from chunkbench.kernels.items import PromptRows
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.query_rows import QueryRows


class Decode(Protocol):
    """The interface that all decode kernels have."""

    @property
    def work_items(self) -> int: ...
    def plan(self, plan: Plan) -> None: ...
    def decode(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0) -> None: ...


class DraftKernel(Decode, Protocol):
    """A kernel that takes several query rows of a sequence."""

    def plan(self, plan: Plan, *, query_rows: QueryRows | None = None) -> None: ...


class HeadKernel(Decode, Protocol):
    """A kernel for some adjacent heads of a store. The argument `layer` of `decode` is the index of the first of these
    heads."""

    def plan(
        self,
        plan: Plan,
        prompts: Sequence[PromptRows] = (),
        *,
        window: int | None = None,
        compensation: CompensationTokens | None = None,
    ) -> None: ...
    def decode(
        self, q: torch.Tensor, out: torch.Tensor, layer: int = 0, *, sinks: torch.Tensor | None = None
    ) -> None: ...


@dataclass(frozen=True)
class _Run:
    """Heads of a layer that lie side by side in a store."""

    first: int
    """Index in the store of the first of these heads."""
    heads: slice | torch.Tensor
    """Indices of these KV heads in the layer."""
    queries: slice | torch.Tensor
    """Indices in the layer of the query heads that belong to these KV heads."""
    count: int


class _HeadStore:
    """The store for all full heads, or for all window heads, of all layers."""

    def __init__(
        self,
        policy: HeadPolicy,
        full: bool,
        group: int,
        together: bool,
        make: Callable[[int], ChunkStore],
        device: torch.device,
    ) -> None:
        self.runs: list[list[_Run]] = []
        """`[layer]`: the runs of the layer's heads."""
        first = 0
        for layer in range(len(policy.full)):
            heads = policy.heads(layer, full)
            parts = [heads] if together and heads else [[head] for head in heads]
            runs = []
            for part in parts:
                queries = [head * group + i for head in part for i in range(group)]
                runs.append(_Run(first, _index(part, device), _index(queries, device), len(part)))
                first += len(part)
            self.runs.append(runs)
        self.heads = first
        self.store = make(first)

    def fill(self, chunks: Ints, k: torch.Tensor, v: torch.Tensor, layer: int) -> None:
        for run in self.runs[layer]:
            self.store.fill(chunks, k[:, run.heads], v[:, run.heads], run.first)

    def append(self, appended: Append, k: torch.Tensor, v: torch.Tensor, layer: int) -> None:
        for run in self.runs[layer]:
            self.store.append(appended, k[:, run.heads], v[:, run.heads], run.first)


def _index(numbers: list[int], device: torch.device) -> slice | torch.Tensor:
    """The indices, as a slice if they are consecutive: indexing with a slice makes no copy. Else they are on the
    device, because a list would be copied there in each call."""
    adjacent = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return slice(numbers[0], numbers[-1] + 1) if adjacent else torch.tensor(numbers, device=device)


class HeadStores:
    """The K and V of both kinds of heads, and the sums of the K and V that window heads lost. The interface is that of
    `ChunkStore`."""

    def __init__(
        self,
        policy: HeadPolicy,
        limit: int | None,
        chunk_size: int,
        head_dim: int,
        group: int,
        together: bool,
        make: Callable[[int], ChunkStore],
        device: torch.device,
    ) -> None:
        """`limit`: maximum number of chunks of the pool. `group`: query heads per KV head. `together`: whether a kernel
        takes several heads at once. `make(n)` makes a store of n layers with one head each."""
        self.policy = policy
        self.chunk_size = chunk_size
        self.full = _HeadStore(policy, True, group, together, make, device)
        self.windows = _HeadStore(policy, False, group, together, make, device)
        heads = 0 if policy.compensation == "none" else self.windows.heads
        self.sums = torch.empty(0, heads, 2, head_dim, device=device)
        """`[entry, window heads of all layers, 2, d]` float32; without a compensation token the second size is 0."""
        share = max(0, self.windows.store.chunk_bytes - self.entry_bytes) / self.chunk_bytes
        rooms = self.full.store.grow, self.windows.store.grow, self._grow_sums
        self.pool = WindowedPool(policy, limit, chunk_size, *rooms, share)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of K and V of one chunk, for all heads in all layers."""
        return self.full.store.chunk_bytes + self.windows.store.chunk_bytes

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry, which holds sums of K and V that window heads lost."""
        return self.sums.stride(0) * self.sums.element_size() if self.sums.shape[1] else 0

    def bytes_of(self, chunks: Ints) -> int:
        """Bytes of K, V and sums that these chunks hold."""
        lacking = int((self.pool.places[chunks] == NOWHERE).sum())
        whole = len(chunks) - lacking
        return whole * self.chunk_bytes + lacking * (self.full.store.chunk_bytes + self.entry_bytes)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of K, V and sums of all chunks in use."""
        windows = self.pool.windows.in_use * self.windows.store.chunk_bytes
        return self.pool.in_use * self.full.store.chunk_bytes + windows + self.pool.sums.in_use * self.entry_bytes

    def touch(self) -> None:
        self.full.store.touch()
        self.windows.store.touch()

    def fill(self, chunks: Ints, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        self.full.fill(chunks, k, v, layer)
        self.windows.fill(self.pool.places[chunks], k, v, layer)

    def append(self, appended: Append, k: torch.Tensor, v: torch.Tensor, layer: int = 0) -> None:
        self.full.append(appended, k, v, layer)
        places = self.pool.places
        there = appended._replace(chunks=places[appended.chunks], new=places[appended.new])
        self.windows.append(there, k, v, layer)

    def copy(self, source: int, target: int, tokens: int, held: int) -> None:
        if self.full.heads:
            self.full.store.copy(source, target, tokens, held)
        if self.windows.heads:
            places = self.pool.places
            self.windows.store.copy(int(places[source]), int(places[target]), tokens, held)

    def drop(self, chunk: int, before: int) -> None:
        """Let window heads lose a full chunk. `before`: id of the previous lost chunk on the path, or NOWHERE. With
        compensation, the sums of `before` are added to the sums of the chunk."""
        place = int(self.pool.places[chunk])
        entry = self.pool.drop(chunk)
        if self.policy.compensation == "none":
            return
        self.sums[entry] = self.windows.store.sums(place)
        if before != NOWHERE:
            self.sums[entry] += self.sums[int(self.pool.entries[before])]

    def _grow_sums(self, entries: int) -> None:
        more = torch.empty(entries - len(self.sums), *self.sums.shape[1:], device=self.sums.device)
        self.sums = torch.cat([self.sums, more])


class HeadDecode:
    """Decode attention over both kinds of heads."""

    def __init__(
        self, stores: HeadStores, make: Callable[[ChunkStore, int], HeadKernel], strided: bool = False
    ) -> None:
        """`make(store, n)` makes a kernel for n adjacent heads of a store. `strided`: whether q and out of the kernels
        need not be contiguous."""
        self._stores, self._strided = stores, strided
        self._kernels = [
            {count: make(heads.store, count) for count in {run.count for runs in heads.runs for run in runs}}
            for heads in (stores.full, stores.windows)
        ]
        self._seen: tuple[Plan, int, WindowPlan] | None = None

    @property
    def work_items(self) -> int:
        """Number of work items of the current plan, added up over all kernels."""
        return sum(kernel.work_items for kernels in self._kernels for kernel in kernels.values())

    def plan(self, plan: Plan, prompts: Sequence[PromptRows] = ()) -> None:
        for kernel in self._kernels[0].values():
            kernel.plan(plan, prompts)
        stores, pool = self._stores, self._stores.pool
        if self._seen is None or self._seen[0] is not plan or self._seen[1] != pool.changes:
            self._seen = plan, pool.changes, pool.of_windows(plan)
        seen = self._seen[2]
        rows, entries, tokens = list[PromptRows](), [seen.entries], [seen.tokens]
        for prompt in prompts:
            places = pool.places[prompt.chunks]
            lacking = prompt.chunks[places == NOWHERE]
            lost = len(lacking) * stores.chunk_size
            rows.append(replace(prompt, chunks=places[places != NOWHERE], first=prompt.first - lost))
            entries.append(np.full(prompt.count, pool.entries[lacking[-1]] if len(lacking) else NOWHERE))
            tokens.append(np.full(prompt.count, lost))
        policy = stores.policy
        weighted = policy.compensation == "weighted"
        all_entries = np.concatenate(entries)
        if policy.compensation == "none":
            all_entries[:] = NOWHERE
        lost_tokens = CompensationTokens(stores.sums, all_entries, np.concatenate(tokens), weighted)
        for kernel in self._kernels[1].values():
            kernel.plan(seen.plan, rows, window=policy.exact_window, compensation=lost_tokens)

    def decode(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0, sinks: torch.Tensor | None = None) -> None:
        """Compute attention of q `[b, h, d]` in a layer, scaled by 1/sqrt(d), and write it to out `[b, h, d]`. `sinks`:
        see `NativeDecode.decode`."""
        for kernels, heads in zip(self._kernels, (self._stores.full, self._stores.windows), strict=True):
            for run in heads.runs[layer]:
                part, own = q[:, run.queries], None if sinks is None else sinks[run.queries]
                if isinstance(run.queries, slice) and (self._strided or part.is_contiguous()):
                    kernels[run.count].decode(part, out[:, run.queries], run.first, sinks=own)
                    continue
                result = torch.empty(part.shape, dtype=q.dtype, device=q.device)
                kernels[run.count].decode(part.contiguous(), result, run.first, sinks=own)
                out[:, run.queries] = result
