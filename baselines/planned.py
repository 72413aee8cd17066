"""Planners of other papers over ChunkAttn's kernel and its K and V, so that a table shows the effect of the plan alone.

All planners of a point read the K and V of one ChunkAttn session. This is the open session of `chunk_attn`, or a new
session if none is open. The planners differ only in which segments they read together (`kernels.planners`). The items
of every planner are cut in the same way for the threads and caches of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from chunkbench.baselines.chunk_attn import ChunkAttn, ChunkAttnSession, open_session
from chunkbench.bench.contract import YES, Answer, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.kernels import cpu
from chunkbench.kernels.planners import Planner, cascade, flat, node_wise, pack, tree_fused
from chunkbench.kernels.trace import Trace, TracedCall


class PlannedSession(Session):
    """A session with its own kernel over the cache of a ChunkAttn session. Several sessions use this cache in turn.
    Every round begins with `rewind`, which removes the tokens that another session appended."""

    def __init__(self, cache: ChunkAttnSession, planner: Planner) -> None:
        self._cache = cache
        self._kernel = cache.attention.with_planner(planner)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.append(token_ids, k, v)

    def plan(self) -> None:
        self._kernel.plan(self._cache.attention.forest, query_rows=self._cache.query_rows)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        self._kernel.decode(q, out)

    def rewind(self) -> None:
        self._cache.rewind()

    def kv_bytes(self) -> int:
        return self._cache.kv_bytes()

    def work_items(self) -> int:
        return self._kernel.work_items

    def trace(self, q: torch.Tensor, out: torch.Tensor, call: TracedCall) -> Trace | None:
        return self._kernel.trace(q, out, call)


class Planned(ChunkAttn):
    def availability(self, device: str) -> Answer:
        missing = cpu.why_missing() if device == "cpu" else "planners are compared over the CPU kernel"
        return Answer(False, missing) if missing else YES

    def supports(self, point: AttentionPoint) -> Answer:
        unfit = cpu.why_not(point.head_dim, point.chunk_size)
        return Answer(False, f"the native kernel cannot compute this: {unfit}") if unfit else YES

    def prepare(self, inputs: Inputs) -> Session:
        return PlannedSession(open_session(inputs), PLANNERS[self.id])


PLANNERS: Mapping[str, Planner] = {
    "plan_flat": flat,
    "plan_cascade": cascade,
    "plan_node_wise": node_wise,
    "plan_tree_fused": tree_fused,
    "plan_pack": pack,
}
