"""FlashInfer (the library `flashinfer`): paged decode, cascade and flat segments.

All three forms read a pool of pages that stores a common prefix once. They differ in how often that prefix is read:

- `flashinfer_paged` (BatchDecodeWithPagedKVCacheWrapper): every sequence reads all its pages through its own table. The
  rows of drafts take batch prefill.
- `flashinfer_cascade`: one batch-prefill call per level of the prefix tree, then pairwise merges, like the library's
  MultiLevelCascadeAttentionWrapper. That class has no parameter for the backend and would choose fa3 on Hopper GPUs.
  So this adapter makes the same calls itself and names the backend (fa2; fa3 in `flashinfer_cascade_fa3`).
- `flashinfer_flat`: all segments of the tree are requests of one batch-prefill call, so that deep and uneven trees
  still fill the GPU with one launch. `merge_states` merges the gathered partial results.

K and V may be fp8 beside queries of 16 bits, with scales of 1, which the library takes if it gets none. Its fa3 backend
takes such K and V only with queries of 8 bits.
"""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chunkbench.attention.blocks import BlockTables
from chunkbench.baselines import on_gpu
from chunkbench.baselines.block_session import PoolSession
from chunkbench.baselines.segments import Flat, Indices, Requests, flat, levels
from chunkbench.bench.contract import Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.draft import parents_of
from chunkbench.kernels.eight_bits import NUMBERS
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.query_rows import seen_in_draft
from chunkbench.kv_dtype import KvDtype

_WORKSPACE = 128 << 20  # bytes, as the library recommends
_HEAD_DIMS = (64, 128, 256)
_EMPTY = -1e30  # log-sum-exp over no tokens; finite, because merging two states of -inf gives NaN


def library() -> Any:
    """Import the library at its first use, because the import takes seconds."""
    import flashinfer

    return flashinfer


@lru_cache(maxsize=1)
def workspace(device: str) -> torch.Tensor:
    """Memory for partial results during a call. Calls never overlap, so all sessions share one workspace."""
    return torch.zeros(_WORKSPACE, dtype=torch.uint8, device=device)


def host(values: Indices) -> torch.Tensor:
    """The integers that a plan call gets."""
    # Copy, because the library copies to the GPU asynchronously while the tables change in place at the next step.
    return torch.from_numpy(values.copy())


def pages(tables: BlockTables) -> tuple[Indices, Indices]:
    """The pages that each sequence reads: the position `[b + 1]` of its first page among those of all sequences, and
    their ids `[pages read]`."""
    table = tables.table
    counts = -(-tables.lengths // tables.block_size)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return indptr, table[np.arange(table.shape[1]) < counts[:, None]]


class _Shape:
    """Sizes and dtypes that every plan call gets."""

    def __init__(self, point: AttentionPoint) -> None:
        self.sizes = (point.heads, point.kv_heads, point.head_dim, point.block_size)
        dtype: torch.dtype = getattr(torch, point.dtype)
        self.numbers = dtype if point.kv_dtype == "same" else NUMBERS[point.kv_dtype]
        self.dtypes = {"q_data_type": dtype, "kv_data_type": self.numbers}

    def stored(self, *pools: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Pools of K and V as the numbers that they hold."""
        return tuple(pool.view(self.numbers) for pool in pools)


class PagedSession(PoolSession):
    """A session in which every request is a sequence, which reads all its pages through its own table."""

    def __init__(self, inputs: Inputs, backend: str) -> None:
        point = inputs.point
        super().__init__(inputs, point.block_size)
        self._shape = _Shape(point)
        self._kv = self._shape.stored(self._k, self._v)
        self._wrapper = self._new_wrapper(point, backend)
        on_gpu.compile_now(self, inputs)

    def _new_wrapper(self, point: AttentionPoint, backend: str) -> Any:
        group = point.heads // point.kv_heads
        # The kernel without tensor cores supports few group sizes, and for larger groups it is the slower one.
        return library().BatchDecodeWithPagedKVCacheWrapper(
            workspace(point.device), "NHD", use_tensor_cores=group not in (1, 2, 3), backend=backend
        )

    def _requests(self) -> Iterator[torch.Tensor]:
        """What a plan call gets of the tables: `indptr` and ids of the pages, and the tokens in the last ones."""
        last = ((self._tables.lengths - 1) % self._block_size + 1).astype(np.int32)
        return map(host, (*pages(self._tables), last))

    def plan(self) -> None:
        self._wrapper.plan(*self._requests(), *self._shape.sizes, **self._shape.dtypes)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        self._wrapper.run(q, self._kv, out=out)


class DraftSession(PagedSession):
    """Several query rows of each sequence: batch prefill whose rows are the last tokens. A chain is the library's
    causal mask, a tree a mask of all tokens."""

    def _new_wrapper(self, point: AttentionPoint, backend: str) -> Any:
        self._rows = host(point.query_rows * np.arange(point.batch_size + 1, dtype=np.int32))
        self._parents = parents_of(point.draft)
        self._draft = seen_in_draft(point.query_rows, self._parents)
        return library().BatchPrefillWithPagedKVCacheWrapper(workspace(point.device), "NHD", backend=backend)

    def plan(self) -> None:
        mask = {"causal": True} if self._parents is None else {"causal": False, "custom_mask": self._mask()}
        self._wrapper.plan(self._rows, *self._requests(), *self._shape.sizes, **mask, **self._shape.dtypes)

    def _mask(self) -> torch.Tensor:
        """`[sum of rows * tokens]`: whether a row reads a token, sequence by sequence."""
        rows = len(self._draft)
        seen = [np.ones((rows, length), np.bool_) for length in self._tables.lengths.tolist()]
        for of_sequence in seen:
            of_sequence[:, -rows:] = self._draft
        return torch.from_numpy(np.concatenate([each.ravel() for each in seen])).to(self._k.device)


class _TreeSession(PoolSession):
    """A session in which every request is a segment of the prefix tree."""

    def __init__(self, inputs: Inputs, backend: str) -> None:
        point = inputs.point
        super().__init__(inputs, point.block_size)
        self._shape = _Shape(point)
        self._kv = self._shape.stored(self._k, self._v)
        self._backend = backend
        self._workspace = workspace(point.device)
        self._library = library()
        self._planned: Plan | None = None
        self._like = torch.empty(
            (0, point.heads, point.head_dim), dtype=getattr(torch, point.dtype), device=point.device
        )

    def plan(self) -> None:
        plan = self._tables.tree.plan()
        self._set(plan, plan is not self._planned)
        self._planned = plan

    @abstractmethod
    def _set(self, plan: Plan, changed: bool) -> None:
        """Plan the library's calls. `changed`: whether segments came or went since the last call; if not, they only
        grew."""

    def _new_wrapper(self) -> Any:
        return self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=self._backend)

    def _plan_wrapper(self, wrapper: Any, requests: Requests) -> None:
        wrapper.plan(
            host(requests.qo_indptr),
            host(requests.kv_indptr),
            host(requests.indices),
            host(requests.last_page_len),
            *self._shape.sizes,
            causal=False,
            **self._shape.dtypes,
        )

    def _states(self, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tensors for partial results `[*shape, heads, d]` and their log-sum-exps `[*shape, heads]`."""
        heads, d = self._like.shape[1:]
        lse = torch.full((*shape, heads), _EMPTY, dtype=torch.float32, device=self._like.device)
        return self._like.new_zeros((*shape, heads, d)), lse

    def _on_device(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._like.device)


class CascadeSession(_TreeSession):
    """A session that makes one call per level of the tree, over all rows in depth-first order, and merges the
    results."""

    def __init__(self, inputs: Inputs, backend: str) -> None:
        super().__init__(inputs, backend)
        b = inputs.point.batch_size
        self._q, _ = self._states(b)
        self._result, self._partial = self._states(b), self._states(b)
        self._wrappers: list[Any] = []
        self._levels: list[Requests] = []
        self._order: torch.Tensor | None = None
        self._depth = 0
        on_gpu.compile_now(self, inputs)

    def _set(self, plan: Plan, changed: bool) -> None:
        if changed:
            self._levels = levels(plan)
            in_order = bool((plan.order == np.arange(len(plan.order))).all())
            self._order = None if in_order else self._on_device(plan.order)
            self._depth = len(self._levels)
            while len(self._wrappers) < self._depth:
                self._wrappers.append(self._new_wrapper())
            for wrapper, level in zip(self._wrappers, self._levels[:-1], strict=False):
                self._plan_wrapper(wrapper, level)
        # Shared segments consist of full blocks, so while the segments stay the same only the last level grows.
        self._plan_wrapper(self._wrappers[self._depth - 1], self._levels[-1].grown(plan))

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        result, lse = self._result
        if self._order is None:
            result = out
        else:
            q = torch.index_select(q, 0, self._order, out=self._q)
        self._run(self._depth - 1, q, result, lse)
        for level in range(self._depth - 1):
            self._run(level, q, *self._partial)
            self._library.merge_state_in_place(result, lse, *self._partial)
        if self._order is not None:
            out.index_copy_(0, self._order, result)

    def _run(self, level: int, q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
        self._wrappers[level].run(q, self._kv, out=out, lse=lse, return_lse=True)


class FlatSession(_TreeSession):
    """A session with one call over all segments, and one merge after it."""

    def __init__(self, inputs: Inputs, backend: str) -> None:
        super().__init__(inputs, backend)
        self._wrapper = self._new_wrapper()
        on_gpu.compile_now(self, inputs)

    def _set(self, plan: Plan, changed: bool) -> None:
        if changed:
            layout = flat(plan)
            self._requests = layout.requests
            self._allocate(layout)
        self._plan_wrapper(self._wrapper, self._requests.grown(plan))

    def _allocate(self, layout: Flat) -> None:
        """Allocate the call's input and output, and the indices that gather its query rows and its partial results."""
        self._rows, self._depth = self._on_device(layout.rows), layout.states.shape[1]
        self._state_indices = self._on_device(layout.states.ravel())
        self._q, _ = self._states(len(layout.rows))
        self._partial, self._lse = self._states(len(layout.rows) + 1)  # the last state stays empty
        self._gathered, self._gathered_lse = self._states(layout.states.size)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        rows = len(self._rows)
        torch.index_select(q, 0, self._rows, out=self._q)
        self._wrapper.run(self._q, self._kv, out=self._partial[:rows], lse=self._lse[:rows], return_lse=True)
        if self._depth == 1:
            torch.index_select(self._partial, 0, self._state_indices, out=out)
            return
        torch.index_select(self._partial, 0, self._state_indices, out=self._gathered)
        torch.index_select(self._lse, 0, self._state_indices, out=self._gathered_lse)
        merged, _ = self._library.merge_states(
            self._gathered.unflatten(0, (-1, self._depth)), self._gathered_lse.unflatten(0, (-1, self._depth))
        )
        out.copy_(merged)


_SESSIONS: Mapping[str, Callable[[Inputs, str], Session]] = {
    "paged": PagedSession,
    "cascade": CascadeSession,
    "flat": FlatSession,
}


def availability(device: str, backend: str, otherwise: str) -> Answer:
    """Whether the library can run here with this backend. `otherwise`: the row to use where the GPU has no fa3."""
    answer = on_gpu.gpu_library(device, "flashinfer-python", on_gpu.extra("flashinfer"), library)
    if answer.ok and not _can_compile():
        return Answer(False, "FlashInfer compiles its kernels with nvcc, and nvcc was not found", "set CUDA_HOME")
    if answer.ok and backend == "fa3" and torch.cuda.get_device_capability() != (9, 0):
        return Answer(False, "FlashInfer's fa3 backend runs only on Hopper GPUs", f"use {otherwise}")
    return answer


def package_version(backend: str) -> str:
    return f"{on_gpu.named('flashinfer-python')} ({backend})"


class FlashInfer(Implementation):
    compiles = True
    shares_storage = True
    kv_dtypes: tuple[KvDtype, ...] = ("same", "fp8")
    form = "paged"
    backend = "fa2"

    def availability(self, device: str) -> Answer:
        return availability(device, self.backend, "flashinfer_cascade")

    def supports(self, point: AttentionPoint) -> Answer:
        if point.head_dim not in _HEAD_DIMS:
            return Answer(False, f"FlashInfer takes head sizes 64, 128 and 256, not {point.head_dim}")
        return on_gpu.half_precision(point, "FlashInfer")

    def prepare(self, inputs: Inputs) -> Session:
        return (DraftSession if inputs.point.query_rows > 1 else _SESSIONS[self.form])(inputs, self.backend)

    def package_version(self) -> str:
        return package_version(self.backend)


def _can_compile() -> bool:
    """Whether the kernels are prebuilt, or nvcc is at a place where the library looks for it."""
    if on_gpu.installed("flashinfer-jit-cache") is not None or shutil.which("nvcc") is not None:
        return True
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return (Path(home) / "bin" / "nvcc").exists()
