"""Planners of other papers over ChunkAttn's kernel and its K and V, so that a table shows the effect of the plan alone.

On a CPU, all planners of a point read the K and V of one ChunkAttn session. This is the open session of `chunk_attn`,
or a new session if none is open. On a GPU, each has a session of its own, so that its calls find cold caches. The
planners differ only in which segments they read together (`kernels.planners`). The items of every planner are cut in
the same way for this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from chunkbench.baselines.chunk_attn import ChunkAttn, ChunkAttnSession, open_session
from chunkbench.bench.contract import YES, Answer, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import NativeDecode
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
        return self._kernel.trace(q, out, call) if isinstance(self._kernel, NativeDecode) else None


class Planned(ChunkAttn):
    def availability(self, device: str) -> Answer:
        if device != "cpu":
            return super().availability(device)
        self._device = device
        missing = cpu.why_missing()
        return Answer(False, missing) if missing else YES

    def supports(self, point: AttentionPoint) -> Answer:
        unfit = cpu.why_not(point.head_dim, point.chunk_size) if point.device == "cpu" else ""
        return Answer(False, f"the native kernel cannot compute this: {unfit}") if unfit else super().supports(point)

    def prepare(self, inputs: Inputs) -> Session:
        if inputs.point.device == "cpu":
            return PlannedSession(open_session(inputs), PLANNERS[self.id])
        session = ChunkAttnSession(inputs, inputs.point.chunk_size, "two-phase", "auto")
        return PlannedSession(session, PLANNERS[self.id])


PLANNERS: Mapping[str, Planner] = {
    "plan_flat": flat,
    "plan_cascade": cascade,
    "plan_node_wise": node_wise,
    "plan_tree_fused": tree_fused,
    "plan_pack": pack,
}
