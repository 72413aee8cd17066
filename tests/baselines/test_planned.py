"""Rows of other planners read the K and V of ChunkAttn's session, and leave it as they found it."""

from __future__ import annotations

import gc

import pytest
import torch

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.workers.heap import visible_storages
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.kernels import cpu

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

POINT = AttentionPoint(
    dtype="float32", device="cpu", n_p=96, n_s=None, tree=((32, ((32, 3), (0, 2))),), batch_size=5, n_c=20,
    heads=4, kv_heads=2, head_dim=32, chunk_size=16,
)  # fmt: skip


def test_sessions_of_a_point_share_memory_and_take_turns() -> None:
    inputs = PooledInputs(POINT, 0)
    sessions = [REGISTRY.load(name).prepare(inputs) for name in ("plan_flat", "chunk_attn", "plan_node_wise")]
    storages = [visible_storages(session) for session in sessions]
    assert storages[0] == storages[1] == storages[2]
    q, outs = inputs.queries(1), []
    for session in sessions:
        session.rewind()
        for step in range(1, POINT.n_c + 1):
            session.append(*inputs.completion(step))
            session.plan()
        outs.append(torch.full_like(q, float("nan")))
        session.decode(q, outs[-1])
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])
    # Of both planners only one reads the root and its child once for several rows.
    traces = [session.trace(q, outs[0], "decode") for session in (sessions[0], sessions[2])]
    assert [trace is not None and bool(trace.shared.any()) for trace in traces] == [False, True]


def test_another_point_has_memory_of_its_own_and_what_nobody_reads_is_freed() -> None:
    first, second = PooledInputs(POINT, 0), PooledInputs(POINT, 0)
    flat, chunk_attn = REGISTRY.load("plan_flat"), REGISTRY.load("chunk_attn")
    kept = flat.prepare(first)
    assert not visible_storages(kept).keys() & visible_storages(flat.prepare(second)).keys()
    again = visible_storages(chunk_attn.prepare(first))
    assert again == visible_storages(kept)
    del kept
    gc.collect()
    from chunkbench.baselines import chunk_attn

    assert not [reference for reference in chunk_attn._OPEN.values() if reference() is not None]
