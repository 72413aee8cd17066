"""Plans of the native kernels: however items are cut, every row reads each of its chunks exactly once."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.kernels.cpu.planner import (
    HEADS_TOGETHER,
    MAX_QUERIES,
    MIN_CHUNKS,
    STAGES,
    UNITS_PER_THREAD,
    Grain,
    ItemArrays,
    arrays,
    cut,
)
from chunkbench.kernels.items import Items, items_of_forest, items_of_tables
from chunkbench.kvcache import ChunkPool, Plan, PrefixTree


class Forest(NamedTuple):
    """A plan as `kvcache` makes it, and the chunk ids of every row in token order."""

    plan: Plan
    contexts: list[list[int]]


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Groups of rows that may share runs, on up to three levels, and one own run per row."""
    rows = draw(st.integers(1, 30))
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(rows).tolist()
    contexts: list[list[int]] = [[] for _ in range(rows)]
    segments: list[tuple[list[int], int, int]] = []
    ids = iter(np.random.default_rng(draw(st.integers(0, 99))).permutation(6000).tolist())

    def segment(begin: int, end: int, length: int) -> None:
        chunks = [next(ids) for _ in range(length)]
        segments.append((chunks, begin, end))
        for row in order[begin:end]:
            contexts[row] += chunks

    def share(begin: int, end: int, depth: int) -> None:
        if end - begin > 1 and depth < 3:
            if draw(st.booleans()):
                segment(begin, end, draw(st.integers(1, 40)))
            middle = draw(st.integers(begin + 1, end - 1))
            share(begin, middle, depth + 1)
            share(middle, end, depth + 1)
        else:
            for position in range(begin, end):
                segment(position, position + 1, draw(st.integers(1, 60)))

    share(0, rows, 0)
    runs, begins, ends = zip(*segments, strict=True)
    plan = Plan(
        chunk_size=16,
        chunks=np.array(list(chain.from_iterable(runs))),
        starts=np.cumsum([0, *map(len, runs)]),
        begins=np.array(begins),
        ends=np.array(ends),
        order=np.array(order),
        chunks_by_slot=np.array([context[-1] for context in contexts]),
        tokens_by_slot=np.full(rows, 3),
        slots=slice(None),
    )
    return Forest(plan, contexts)


def table_items(contexts: list[list[int]]) -> Items:
    chunks = np.array(list(chain.from_iterable(contexts)), np.int64)
    return items_of_tables(chunks, np.array([len(c) for c in contexts], np.int64), np.arange(len(contexts)))


GRAINS = st.builds(Grain, st.integers(1, 70), st.sampled_from([1, 2, 8]), st.sampled_from([1, 3, 8, 100]))


def check(flat: ItemArrays, contexts: list[list[int]]) -> None:
    """Compare item arrays with the chunk ids of every row."""
    chunks_read: dict[int, list[int]] = defaultdict(list)
    tail_chunks: dict[int, list[int]] = defaultdict(list)
    row_of_partial: dict[int, int] = {}
    folds_of_row: dict[int, list[int]] = {}
    for index, (first, count, tail, first_row, rows, partial, first_fold, folds, _) in enumerate(flat.items.tolist()):
        chunks = flat.chunks[first : first + count].tolist()
        assert len(chunks) == count
        members = flat.rows[first_row : first_row + rows].tolist()
        assert len(members) == rows > 0
        assert (partial >= 0) == (index < flat.partial_items), "items that write partial results come first"
        for place, row in enumerate(members):
            chunks_read[row] += chunks
            if partial >= 0:
                assert count > 0
                assert partial + place not in row_of_partial, "two items write the same partial result"
                row_of_partial[partial + place] = row
            else:
                assert row not in folds_of_row, "two items write the output of the same row"
                folds_of_row[row] = flat.folds[first_fold : first_fold + folds].tolist()
                assert rows == 1 or folds == 0
        if tail >= 0:
            assert members == [tail]
            tail_chunks[tail].append(chunks[-1])
    for row, context in enumerate(contexts):
        assert sorted(chunks_read[row]) == sorted(context)
        assert tail_chunks[row] == [context[-1]]
    assert sorted(row_of_partial) == list(range(flat.partials))
    assert set(folds_of_row) == set(range(len(contexts)))
    partials_of_row: dict[int, list[int]] = defaultdict(list)
    for partial, row in row_of_partial.items():
        partials_of_row[row].append(partial)
    assert {row: sorted(folds) for row, folds in folds_of_row.items() if folds} == {
        row: sorted(partials) for row, partials in partials_of_row.items()
    }


@settings(max_examples=60)
@given(forest=forests(), grain=GRAINS, chunk_first=st.booleans())
def test_every_row_reads_each_of_its_chunks_once(forest: Forest, grain: Grain, chunk_first: bool) -> None:
    items, heads = cut(items_of_forest(forest.plan, chunk_first), grain)
    check(arrays(items, heads, len(forest.contexts)), forest.contexts)
    if not chunk_first:
        assert (items.row_count == 1).all()


@settings(max_examples=40)
@given(forest=forests(), grain=GRAINS)
def test_items_are_bounded_and_expensive_items_come_first(forest: Forest, grain: Grain) -> None:
    items, _ = cut(items_of_forest(forest.plan, True), grain)
    assert (items.row_count * grain.group <= max(MAX_QUERIES, grain.group)).all()
    for earlier, later in pairwise(zip(items.chunk_count.tolist(), items.row_count.tolist(), strict=True)):
        # An item with at most as many chunks and rows as another one costs no more, so it cannot come before it.
        smaller = earlier[0] <= later[0] and earlier[1] <= later[1]
        assert not smaller or earlier == later


@pytest.mark.parametrize("threads", [1, 2, 8, 64])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_one_long_sequence_gives_every_thread_enough_items(threads: int, kv_heads: int) -> None:
    length = MIN_CHUNKS * UNITS_PER_THREAD * threads
    items, heads = cut(table_items([list(range(length))]), Grain(threads, kv_heads, 1))
    lengths = items.chunk_count
    assert (-(-kv_heads // heads)).sum() >= threads * UNITS_PER_THREAD
    assert lengths.min() >= MIN_CHUNKS
    assert lengths.max() - lengths.min() <= 1


def test_private_rows_read_several_heads_chunk_by_chunk_and_shared_ones_head_by_head() -> None:
    own = [list(range(100 * row, 100 * row + 16)) for row in range(32)]
    grain = Grain(2, 32, 1)
    assert cut(table_items(own), grain)[1].tolist() == [HEADS_TOGETHER] * 32
    # A block that two tables share: its readers go head by head, so that its K and V stay in the cache.
    shared = [[7, *row] for row in own[:2]] + own[2:]
    assert sorted(cut(table_items(shared), grain)[1].tolist()) == [1, 1] + [HEADS_TOGETHER] * 30
    tree = PrefixTree(16, ChunkPool())
    for row in range(4):
        tree.join([*range(320), *range(1000 * (row + 1), 1000 * (row + 1) + 320)])
    items, heads = cut(items_of_forest(tree.plan(), True), grain)
    assert set(heads[items.row_count > 1].tolist()) == {1}
    assert set(heads[items.row_count == 1].tolist()) == {32 // STAGES}


def test_few_rows_take_fewer_heads_at_a_time_so_that_every_thread_gets_work() -> None:
    _, heads = cut(table_items([[row] for row in range(4)]), Grain(2, 4, 1))
    assert heads.tolist() == [1, 1, 1, 1]
    _, heads = cut(table_items([[row] for row in range(8)]), Grain(2, 4, 1))
    assert heads.tolist() == [2] * 8


def test_a_short_run_is_not_cut() -> None:
    items, _ = cut(table_items([list(range(2 * MIN_CHUNKS - 1))]), Grain(64, 1, 1))
    assert items.chunk_count.tolist() == [2 * MIN_CHUNKS - 1]
    assert items.tail_row.tolist() == [0]


def test_many_short_sequences_write_their_output_directly() -> None:
    flat = arrays(*cut(table_items([[row] for row in range(100)]), Grain(2, 4, 1)), 100)
    check(flat, [[row] for row in range(100)])
    assert flat.partials == flat.partial_items == 0


def test_no_sequences_give_no_items() -> None:
    flat = arrays(*cut(table_items([]), Grain(2, 1, 1)), 0)
    check(flat, [])
    assert flat.items.shape == (0, 9)


@pytest.mark.parametrize("chunk_first", [True, False])
def test_a_prefix_tree_of_three_levels_and_256_rows(chunk_first: bool) -> None:
    size = 64
    tree = PrefixTree(size, ChunkPool())
    for row in range(256):
        system = list(range(1024))
        group = [10_000 + row // 16 * 1000 + token for token in range(512)]
        own = [100_000 + row * 1000 + token for token in range(200 + row)]
        tree.join([*system, *group, *own])
    plan = tree.plan()
    flat = arrays(*cut(items_of_forest(plan, chunk_first), Grain(8, 4, 2)), 256)
    # Expected from the token ids: 16 chunks that all rows share, 8 for every group of 16 rows, and own chunks.
    readers: dict[int, int] = defaultdict(int)
    contexts: list[list[int]] = [[] for _ in range(256)]
    for first, count, _, first_row, rows, *_ in flat.items.tolist():
        for row in flat.rows[first_row : first_row + rows].tolist():
            contexts[row] += flat.chunks[first : first + count].tolist()
    for row, context in enumerate(contexts):
        assert len(context) == len(set(context)) == 16 + 8 + -(-(200 + row) // size)
        for chunk in context:
            readers[chunk] += 1
    counts = list(readers.values())
    assert counts.count(256) == 16
    assert counts.count(16) == 16 * 8
    assert counts.count(1) == sum(-(-(200 + row) // size) for row in range(256))
    check(
        flat,
        [
            [*(c for c in context if c != last), int(last)]
            for context, last in zip(contexts, plan.last_chunks, strict=True)
        ],
    )
