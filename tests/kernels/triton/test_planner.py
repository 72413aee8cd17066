"""The planner's numbering and the split of prompts, Triton's tuning and compilation."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.kernels.items import items_of_forest, items_of_tables
from chunkbench.kernels.planners import flat, two_phase
from chunkbench.kernels.triton.planner import Descriptors, Shape, describe
from tests.kernels.pieces import planned, prompts

H100 = Shape(
    kv_heads=32, group=1, chunk_size=64, multiprocessors=132, blocks=3, narrow_blocks=5, narrow=16, lanes=64,
    head_tokens=2.0,
)  # fmt: skip


def chunks_read(work: Descriptors) -> dict[int, Counter[int]]:
    """How often each row reads each chunk, in items and in its tail."""
    counts: dict[int, Counter[int]] = {row: Counter() for row in range(len(work.rows))}
    for first, count, position, positions, *_ in work.items.tolist():
        for row in work.order[position : position + positions].tolist():
            counts[row].update(work.chunks[first : first + count].tolist())
    for row, (first, count, *_) in enumerate(work.rows.tolist()):
        counts[row].update(work.chunks[first : first + count].tolist())
    return counts


def check_partials(work: Descriptors, tail_rows: dict[int, int]) -> None:
    """Every partial result has one writer and one reader, of the same row. Every output has one writer."""
    written: dict[int, int] = {}
    direct: Counter[int] = Counter()
    for first, count, position, positions, tail, slot, *_ in work.items.tolist():
        rows = work.order[position : position + positions].tolist()
        if slot < 0:
            direct.update(rows)
        for index, row in enumerate(rows if slot >= 0 else []):
            assert slot + index not in written
            written[slot + index] = row
        ends = work.chunks[first + count - 1]
        assert tail == (rows[0] if positions == 1 and tail_rows.get(rows[0]) == ends else -1)
    read = {
        int(slot): row
        for row, (*_, first, folds) in enumerate(work.rows.tolist())
        for slot in work.folds[first : first + folds]
    }
    assert read == written
    for row, (_, tail, *_, folds) in enumerate(work.rows.tolist()):
        assert direct[row] == (0 if folds or tail else 1)


@settings(max_examples=150, deadline=None)
@given(
    drawn=prompts(),
    kv_heads=st.sampled_from([1, 4, 32]),
    group=st.sampled_from([1, 3, 16, 24]),
    multiprocessors=st.integers(1, 140),
    shares=st.booleans(),
)
def test_every_row_reads_each_of_its_chunks_once(
    drawn: list[list[int]], kv_heads: int, group: int, multiprocessors: int, shares: bool
) -> None:
    plan, paths = planned(drawn, 16)
    shape = H100._replace(kv_heads=kv_heads, group=group, chunk_size=16, multiprocessors=multiprocessors)
    merged = two_phase(plan, group, shape.costs) if shares else flat(plan, group)
    work = describe(items_of_forest(plan, merged), len(drawn), shape)
    assert chunks_read(work) == {row: Counter(path) for row, path in enumerate(paths)}
    private = Counter(chunk for path in paths for chunk in path)
    ends = {row: path[-1] for row, path in enumerate(paths) if private[path[-1]] == 1 or not shares}
    check_partials(work, ends)
    assert work.widest() <= shape.lanes // group


@pytest.mark.parametrize(("shared", "widest"), [(16, 1), (512, 2)])
def test_short_shared_runs_move_into_their_children_and_long_ones_stay(shared: int, widest: int) -> None:
    """A chunk of 16 tokens that two rows share is cheaper to read twice than to merge."""
    plan, _ = planned([[*range(shared), *range(1000 * row, 1000 * row + 300)] for row in (1, 2)], 16)
    shape = H100._replace(chunk_size=16, multiprocessors=1, kv_heads=1)
    assert describe(items_of_forest(plan, two_phase(plan, 1, shape.costs)), 2, shape).widest() == widest


def test_the_merge_takes_short_tails() -> None:
    """In Table 3 each row has one own token after the shared prompt: an item for it would cost more than it saves."""
    common = list(range(1024))
    plan, _ = planned([[*common, 5000 + row] for row in range(32)], 64)
    work = describe(items_of_forest(plan, two_phase(plan, 1, H100.costs)), 32, H100)
    assert (work.rows["chunk_count"] == 1).all()
    assert (work.items["row_count"] == 32).all()


@pytest.mark.parametrize("multiprocessors", [108, 132])
@pytest.mark.parametrize("n_p", [1024, 2048, 4096])
@pytest.mark.parametrize("share", [0, 0.5, 0.75, 1])
def test_balance_for_table_3(n_p: int, share: float, multiprocessors: int) -> None:
    """32 sequences, 32 heads: the last multiprocessor ends at most 10% later than with evenly distributed reads."""
    n_s = int(n_p * share)
    drawn = [[*range(n_s), *range(10_000 * (row + 1), 10_000 * (row + 1) + n_p - n_s)] for row in range(32)]
    plan, _ = planned(drawn, 64)
    a100 = {"blocks": 2, "narrow_blocks": 4}
    shape = H100._replace(multiprocessors=multiprocessors, **(a100 if multiprocessors == 108 else {}))
    blocks = shape.blocks if n_s else shape.narrow_blocks
    work = describe(items_of_forest(plan, two_phase(plan, 1, shape.costs)), 32, shape)
    tokens = work.items["chunk_count"] * 64.0
    total = float(tokens.sum() + work.rows["chunk_count"].sum() * 64) * shape.kv_heads
    assert total == (n_s + 32 * (n_p - n_s)) * shape.kv_heads
    assert makespan(np.repeat(tokens, shape.kv_heads), multiprocessors, blocks) <= 1.1 * total / multiprocessors


def makespan(costs: np.ndarray, multiprocessors: int, blocks: int) -> float:
    """Time when the last program ends. Programs start in this order, each as soon as a block is free.

    All running blocks share the bandwidth evenly, `multiprocessors` tokens per unit of time. A multiprocessor cannot
    draw more than twice its share. If many blocks are free at once, one multiprocessor takes as many programs as it
    can, which is the worst order.
    """
    waiting = list(costs[::-1])
    left = np.zeros((multiprocessors, blocks))
    for place in np.ndindex(blocks, multiprocessors):  # the first wave goes round all multiprocessors
        if waiting:
            left[place[::-1]] = waiting.pop()
    now = 0.0
    while (running := left > 0).any():
        each = multiprocessors / running.sum()
        rate = np.minimum(each, 2 / np.maximum(1, running.sum(1)))[:, None]
        step = (left[running] / np.broadcast_to(rate, left.shape)[running]).min()
        left = np.where(running, left - rate * step, 0.0)
        left[left < 1e-6] = 0.0
        now += step
        for place in np.argwhere(left == 0.0):
            if waiting:
                left[tuple(place)] = waiting.pop()
    return now


def test_paged_tables_are_split_over_keys() -> None:
    """With two long sequences, each of the 132 multiprocessors gets something to read."""
    chunks = np.arange(2 * 512, dtype=np.int64)
    items = items_of_tables(chunks, np.array([512, 512], np.int64), np.arange(2))
    work = describe(items, 2, H100._replace(kv_heads=1))
    assert len(work.items) >= 132
    assert chunks_read(work) == {0: Counter(range(512)), 1: Counter(range(512, 1024))}
