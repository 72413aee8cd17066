"""Planners of other papers over ChunkAttn's kernel and over its K and V, so that a table separates plan and kernel.

All of them read the same memory: the session of `chunk_attn` at the same point, if it is open, else one that they
share. Only which segments are read together differs (`kernels.planners`); our cut of items for this machine's threads
and caches is that of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from chunkbench.baselines.chunk_attn import ChunkAttn, ChunkAttnSession, open_session
from chunkbench.bench.contract import YES, Answer, Inputs, Session, Style
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.kernels import cpu
from chunkbench.kernels.planners import Planner, cascade, flat, node_wise, pack, tree_fused
from chunkbench.kernels.trace import Trace, TracedCall


class PlannedSession(Session):
    """Another kernel over the cache of a ChunkAttn session. Every round begins with `rewind`, so sessions that take
    turns find the prompts alone."""

    def __init__(self, cache: ChunkAttnSession, planner: Planner) -> None:
        self._cache = cache
        self._kernel = cache.attention.with_planner(planner)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.append(token_ids, k, v)

    def plan(self) -> None:
        self._kernel.plan(self._cache.attention.forest)

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


def _style(plan: str, meaning: str, place: int, marker: str) -> Style:
    return Style(
        heading=("Plan", plan),
        meaning=meaning,
        column_order=920 + place,
        colour=ChunkAttn.style.colour,
        marker=marker,
        line="dotted",
        ablation_of=ChunkAttn.id,
    )


class PlanFlat(ChunkAttn):
    id = "plan_flat"
    label = "Plan: flat"
    style = _style("flat", "ChunkAttn's kernel and K/V; every sequence reads its whole path", 0, "1")
    reads_shared_once = False

    def availability(self, device: str) -> Answer:
        missing = cpu.why_missing() if device == "cpu" else "planners are compared over the CPU kernel"
        return Answer(False, missing) if missing else YES

    def supports(self, point: AttentionPoint) -> Answer:
        unfit = cpu.why_not(point.head_dim, point.chunk_size)
        return Answer(False, f"the native kernel cannot compute this: {unfit}") if unfit else YES

    def prepare(self, inputs: Inputs) -> Session:
        return PlannedSession(open_session(inputs), PLANNERS[self.id])


class PlanCascade(PlanFlat):
    id = "plan_cascade"
    label = "Plan: cascade"
    style = _style("cascade", "the same; the first shared node once, the rest per sequence (Hydragen)", 1, "2")


class PlanNodeWise(PlanFlat):
    id = "plan_node_wise"
    label = "Plan: node-wise"
    style = _style("node-wise", "the same; each node once (DeFT-Node)", 2, "3")
    reads_shared_once = True


class PlanTreeFused(PlanFlat):
    id = "plan_tree_fused"
    label = "Plan: tree-fused"
    style = _style("tree-fused", "the same; FastTree's greedy split with its constants", 3, "4")
    reads_shared_once = True


class PlanPack(PlanFlat):
    id = "plan_pack"
    label = "Plan: pack"
    style = _style("pack", "the same; PAT's pack scheduler", 4, "+")
    reads_shared_once = True


PLANNERS: Mapping[str, Planner] = {
    PlanFlat.id: flat,
    PlanCascade.id: cascade,
    PlanNodeWise.id: node_wise,
    PlanTreeFused.id: tree_fused,
    PlanPack.id: pack,
}
