"""Plans of the GPU kernels: every key of every row exactly once, and the multiprocessors evenly busy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.kernels.items import items_of_forest, items_of_tables
from chunkbench.kernels.triton.planner import Descriptors, Shape, describe
from chunkbench.kvcache import Plan, PrefixTree

H100 = Shape(
    kv_heads=32, group=1, chunk_size=64, multiprocessors=132, blocks=3, narrow_blocks=5, narrow=16, lanes=64,
    head_tokens=2.0, tails=True,
)  # fmt: skip


def forest(draws: list[list[int]], chunk_size: int) -> tuple[PrefixTree, Plan]:
    """A sequence for each list of token ids."""
    tree = PrefixTree(chunk_size)
    for ids in draws:
        tree.join(ids)
    return tree, tree.plan()


def chunks_met(made: Descriptors) -> dict[int, Counter[int]]:
    """How often each row meets each chunk, in items and in its tail."""
    met: dict[int, Counter[int]] = {row: Counter() for row in range(len(made.rows))}
    for first, count, position, positions, *_ in made.items.tolist():
        for row in made.order[position : position + positions].tolist():
            met[row].update(made.chunks[first : first + count].tolist())
    for row, (_, _, first, count) in enumerate(made.rows.tolist()):
        met[row].update(made.chunks[first : first + count].tolist())
    return met


def check_partials(made: Descriptors, tail_rows: dict[int, int]) -> None:
    """Every partial result has one writer and one reader, of the same row; an output has one writer."""
    written: dict[int, int] = {}
    direct: Counter[int] = Counter()
    for first, count, position, positions, slot, tail, *_ in made.items.tolist():
        rows = made.order[position : position + positions].tolist()
        if slot < 0:
            direct.update(rows)
        for index, row in enumerate(rows if slot >= 0 else []):
            assert slot + index not in written
            written[slot + index] = row
        ends = made.chunks[first + count - 1]
        assert tail == (rows[0] if positions == 1 and tail_rows.get(rows[0]) == ends else -1)
    read = {
        int(slot): row
        for row, (first, folds, _, _) in enumerate(made.rows.tolist())
        for slot in made.folds[first : first + folds]
    }
    assert read == written
    for row, (_, folds, _, tail) in enumerate(made.rows.tolist()):
        assert direct[row] == (0 if folds or tail else 1)


@st.composite
def prompts(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that share prefixes at any depth: each goes on from a cut of an earlier one."""
    found: list[list[int]] = []
    for number in range(draw(st.integers(1, 20))):
        base = draw(st.sampled_from(found)) if found and draw(st.booleans()) else []
        kept = base[: draw(st.integers(0, len(base)))]
        found.append([*kept, *(1000 * (number + 1) + token for token in range(draw(st.integers(1, 120))))])
    return found


@settings(max_examples=150, deadline=None)
@given(
    drawn=prompts(),
    kv_heads=st.sampled_from([1, 4, 32]),
    group=st.sampled_from([1, 3, 16, 24]),
    multiprocessors=st.integers(1, 140),
    tails=st.booleans(),
    two_phase=st.booleans(),
)
def test_every_row_meets_each_of_its_chunks_once(
    drawn: list[list[int]], kv_heads: int, group: int, multiprocessors: int, tails: bool, two_phase: bool
) -> None:
    tree, plan = forest(drawn, 16)
    shape = H100._replace(kv_heads=kv_heads, group=group, chunk_size=16, multiprocessors=multiprocessors, tails=tails)
    made = describe(items_of_forest(plan, two_phase), len(drawn), shape)
    paths = [tree.path(sequence) for sequence in tree.sequences]
    assert chunks_met(made) == {row: Counter(path) for row, path in enumerate(paths)}
    private = Counter(chunk for path in paths for chunk in path)
    ends = {row: path[-1] for row, path in enumerate(paths) if private[path[-1]] == 1 or not two_phase}
    check_partials(made, ends)
    assert made.widest() <= shape.lanes // group
    assert tails or not made.rows[:, 3].any()


def test_short_runs_go_to_those_below() -> None:
    """A chunk of 16 tokens that two rows share is cheaper to read twice than to merge."""
    common = list(range(16))
    _, plan = forest([[*common, *range(100, 400)], [*common, *range(500, 800)]], 16)
    made = describe(items_of_forest(plan, True), 2, H100._replace(chunk_size=16, multiprocessors=1, kv_heads=1))
    assert made.widest() == 1


def test_long_runs_do_not() -> None:
    common = list(range(512))
    _, plan = forest([[*common, *range(1000, 1300)], [*common, *range(5000, 5300)]], 16)
    made = describe(items_of_forest(plan, True), 2, H100._replace(chunk_size=16, multiprocessors=1, kv_heads=1))
    assert made.widest() == 2


def test_short_tails_are_left_to_the_merge() -> None:
    """After the shared prompt of Table 3 each row holds one token of its own: no item is worth its start."""
    common = list(range(1024))
    _, plan = forest([[*common, 5000 + row] for row in range(32)], 64)
    made = describe(items_of_forest(plan, True), 32, H100)
    assert (made.rows[:, 3] == 1).all()
    assert (made.items[:, 3] == 32).all()


@pytest.mark.parametrize("multiprocessors", [108, 132])
@pytest.mark.parametrize("n_p", [1024, 2048, 4096])
@pytest.mark.parametrize("share", [0, 0.5, 0.75, 1])
def test_balance_for_table_3(n_p: int, share: float, multiprocessors: int) -> None:
    """32 sequences, 32 heads: the last multiprocessor is done within 10% of an even spread of the reading."""
    n_s = int(n_p * share)
    drawn = [[*range(n_s), *range(10_000 * (row + 1), 10_000 * (row + 1) + n_p - n_s)] for row in range(32)]
    _, plan = forest(drawn, 64)
    a100 = {"blocks": 2, "narrow_blocks": 4}
    shape = H100._replace(multiprocessors=multiprocessors, **(a100 if multiprocessors == 108 else {}))
    blocks = shape.blocks if n_s else shape.narrow_blocks
    made = describe(items_of_forest(plan, True), 32, shape)
    tokens = made.items[:, 1] * 64.0
    total = float(tokens.sum() + made.rows[:, 3].sum() * 64) * shape.kv_heads
    assert total == (n_s + 32 * (n_p - n_s)) * shape.kv_heads
    assert makespan(np.repeat(tokens, shape.kv_heads), multiprocessors, blocks) <= 1.1 * total / multiprocessors


def makespan(costs: np.ndarray, multiprocessors: int, blocks: int) -> float:
    """When the last of the programs ends that start in this order wherever a block is free.

    All running blocks share the bandwidth evenly, `multiprocessors` tokens in a unit of time; a multiprocessor cannot
    draw more than twice its share. Where many blocks are free at once, one multiprocessor takes all that it can: the
    worst of all orders.
    """
    waiting = list(costs[::-1])
    left = np.zeros((multiprocessors, blocks))
    for place in np.ndindex(blocks, multiprocessors):  # the first wave goes round
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
    """Two long sequences and 132 multiprocessors: every one of them has something to read."""
    chunks = np.arange(2 * 512, dtype=np.int64)
    items = items_of_tables(chunks, np.array([512, 512], np.int64), np.arange(2))
    made = describe(items, 2, H100._replace(kv_heads=1))
    assert len(made.items) >= 132
    assert chunks_met(made) == {0: Counter(range(512)), 1: Counter(range(512, 1024))}
