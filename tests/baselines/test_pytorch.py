"""PyTorch's own attention: the backends of SDPA, and FlexAttention."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend

from chunkbench.attention.tree import PrefixTree
from chunkbench.baselines import flex_attention, sdpa
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.measure.profiler import thread_count
from chunkbench.bench.workers.inputs import PooledInputs
from tests.baselines.checked import check, inputs_of, make_point, points


@pytest.mark.parametrize("axes", [{}, {"kv_heads": 2}, {"n_p": (50, 90)}], ids=["equal", "grouped heads", "ragged"])
def test_the_adapters_call_computes_attention(axes: dict[str, Any]) -> None:
    inputs = inputs_of(**axes)
    check(sdpa.SdpaSession(inputs, SDPBackend.MATH), inputs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has both backends")
@pytest.mark.parametrize("adapter", [sdpa.SdpaEfficient, sdpa.Cudnn])
def test_an_adapter_uses_its_own_backend_only(adapter: Any) -> None:
    inputs = inputs_of(n_c=1)
    session = adapter().prepare(inputs)
    with pytest.raises(RuntimeError, match=r"No (available kernel|viable backend)"):
        session.decode(inputs.queries(1), torch.empty(4, 4, 64))


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
        first = 1000 * (row % 3)
        tree.join([*range(first, first + 300), *range(100_000 + 100 * row, 100_000 + 100 * row + row % 50)])
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
    inputs = inputs_of(n_c=12)
    out = torch.empty(4, 4, 64)
    with thread_count(1):
        copies = [flex_attention.FlexSession(inputs, compiled=True) for _ in range(2)]
        for session in copies * 2:
            session.rewind()
            for step in range(1, 13):  # the sequences begin chunks at step 11
                session.append(*inputs.completion(step))
                session.plan()
                session.decode(inputs.queries(step), out)
    assert counter.frame_count == 1
