"""FlexAttention over all distinct K/V as one sequence: its result in uncompiled PyTorch, and the mask's blocks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from chunkbench.attention.tree import PrefixTree
from chunkbench.baselines import flex_attention
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.workers.inputs import PooledInputs
from tests.baselines.checks import check, inputs_of, make_point, points


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@points()
def test_attention_under_the_mask_is_right(axes: dict[str, Any]) -> None:
    inputs = inputs_of(**axes)
    check(flex_attention.FlexSession(inputs, compiled=False), inputs)


def test_a_shared_prefix_is_held_once() -> None:
    point = make_point(n_p=320, n_s=320, batch_size=8, n_c=2)
    session = flex_attention.FlexSession(PooledInputs(point, seed=1), compiled=False)
    assert session.kv_bytes() == 320 * point.token_bytes


@pytest.mark.parametrize(("rows", "chunk"), [(3, 16), (3, 256), (200, 32), (130, 64)])
def test_the_masks_blocks_cover_every_visible_slot_and_full_blocks_are_full(rows: int, chunk: int) -> None:
    tree = PrefixTree(chunk)
    for row in range(rows):
        # Three prefixes; rows with the same prefix are not neighbours.
        tree.join(
            [*range(1000 * (row % 3), 1000 * (row % 3) + 300), *(100_000 + 100 * row + i for i in range(row % 50))]
        )
    plan = tree.plan()
    slots = tree.pool.in_use * chunk
    sees = np.zeros((rows, slots), bool)
    for row, sequence in enumerate(tree.sequences):
        path_slots = (np.array(tree.path(sequence))[:, None] * chunk + np.arange(chunk)).ravel()
        sees[row, path_slots[: tree.lengths[row]]] = True
    part, full = flex_attention.blocks_of(plan, slots)
    assert not (part & full).any()
    size = flex_attention.BLOCK
    for i, j in np.ndindex(part.shape):
        block = sees[i * size : (i + 1) * size, j * size : (j + 1) * size]
        assert full[i, j] == (block.all() and block.shape[1] == size)
        assert part[i, j] or full[i, j] or not block.any()
    assert rows <= size or not (part | full).all()  # a block of rows skips private chunks of rows outside it


def test_a_prefix_shared_by_all_rows_gives_full_blocks() -> None:
    tree = PrefixTree(64)
    for row in range(4):
        tree.join([*range(512), 1000 + row])
    part, full = flex_attention.blocks_of(tree.plan(), tree.pool.in_use * 64)
    assert full.sum() == 512 // flex_attention.BLOCK
    assert part.sum() == 2  # the four private chunks of 64 slots


def test_pytorch_compiles_once_for_all_copies_steps_and_plans_of_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds

    counter = CompileCounterWithBackend("eager")

    def compiled(point: AttentionPoint) -> Any:
        torch.compiler.reset()
        return torch.compile(flex_attention.flex_attention, dynamic=False, fullgraph=True, backend=counter)

    monkeypatch.setattr(flex_attention, "_compiled", lru_cache(compiled))
    point = make_point(n_c=20)
    inputs = PooledInputs(point, seed=1)
    copies = [flex_attention.FlexSession(inputs, compiled=True) for _ in range(3)]
    out = torch.empty(point.batch_size, point.heads, point.head_dim)
    for _ in range(2):
        for session in copies:
            session.rewind()
        for step in range(1, 21):
            for session in copies:
                session.append(*inputs.completion(step))
                session.plan()
                session.decode(inputs.queries(step), out)
    assert counter.frame_count == 1
