"""Plans of the native kernels: however items are cut, every row reads each of its chunks exactly once."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain, pairwise

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
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.planners import Planner, cascade, flat, node_wise, pack, tree_fused, two_phase
from tests.kernels.prompt_pieces import planned, prompts


def table_items(contexts: list[list[int]]) -> Items:
    chunks = np.array(list(chain.from_iterable(contexts)), np.int64)
    return items_of_tables(chunks, np.array([len(c) for c in contexts], np.int64), np.arange(len(contexts)))


def forest_items(plan: Plan, planner: Planner) -> Items:
    return items_of_forest(plan, planner(plan, 1))


GRAINS = st.builds(Grain, st.integers(1, 70), st.sampled_from([1, 2, 8]), st.sampled_from([1, 3, 8, 100]))


def check(made: ItemArrays, contexts: list[list[int]]) -> None:
    """Compare item arrays with the chunk ids of every row. Only the item that ends in a row's last chunk has a tail."""
    readers = Counter(chain.from_iterable(contexts))
    chunks_read: dict[int, list[int]] = defaultdict(list)
    tail_chunks: dict[int, list[int]] = defaultdict(list)
    row_of_partial: dict[int, int] = {}
    folds_of_row: dict[int, list[int]] = {}
    for index, (first, count, first_row, rows, tail, partial, first_fold, folds, _) in enumerate(made.items.tolist()):
        chunks = made.chunks[first : first + count].tolist()
        assert len(chunks) == count
        members = made.rows[first_row : first_row + rows].tolist()
        assert len(members) == rows > 0
        assert (partial >= 0) == (index < made.partial_items), "items that write partial results come first"
        for place, row in enumerate(members):
            chunks_read[row] += chunks
            if partial >= 0:
                assert count > 0
                assert partial + place not in row_of_partial, "two items write the same partial result"
                row_of_partial[partial + place] = row
            else:
                assert row not in folds_of_row, "two items write the output of the same row"
                folds_of_row[row] = made.folds[first_fold : first_fold + folds].tolist()
                assert rows == 1 or folds == 0
        if tail >= 0:
            assert members == [tail]
            tail_chunks[tail].append(chunks[-1])
    for row, context in enumerate(contexts):
        assert sorted(chunks_read[row]) == sorted(context)
        own = not tail_chunks[row] and readers[context[-1]] > 1  # a chunk that several rows have is full
        assert own or tail_chunks[row] == [context[-1]]
    assert sorted(row_of_partial) == list(range(len(made.folds)))
    assert set(folds_of_row) == set(range(len(contexts)))
    partials_of_row: dict[int, list[int]] = defaultdict(list)
    for partial, row in row_of_partial.items():
        partials_of_row[row].append(partial)
    assert {row: sorted(folds) for row, folds in folds_of_row.items() if folds} == {
        row: sorted(partials) for row, partials in partials_of_row.items()
    }


@settings(max_examples=60)
@given(drawn=prompts(), grain=GRAINS, planner=st.sampled_from([two_phase, flat, cascade, node_wise, tree_fused, pack]))
def test_every_row_reads_each_of_its_chunks_once(drawn: list[list[int]], grain: Grain, planner: Planner) -> None:
    plan, contexts = planned(drawn, 1)
    items, heads = cut(items_of_forest(plan, planner(plan, grain.group)), grain)
    check(arrays(items, heads, len(contexts)), contexts)


@settings(max_examples=40)
@given(drawn=prompts(), grain=GRAINS)
def test_items_are_bounded_and_expensive_items_come_first(drawn: list[list[int]], grain: Grain) -> None:
    items, _ = cut(forest_items(planned(drawn, 1)[0], node_wise), grain)
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
    plan, _ = planned([[*range(320), *range(1000 * (row + 1), 1000 * (row + 1) + 320)] for row in range(4)], 16)
    items, heads = cut(forest_items(plan, node_wise), grain)
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
    made = arrays(*cut(table_items([[row] for row in range(100)]), Grain(2, 4, 1)), 100)
    check(made, [[row] for row in range(100)])
    assert len(made.folds) == made.partial_items == 0


def test_no_sequences_give_no_items() -> None:
    made = arrays(*cut(table_items([]), Grain(2, 1, 1)), 0)
    check(made, [])
    assert len(made.items) == 0


@pytest.mark.parametrize("planner", [node_wise, flat])
def test_a_prefix_tree_of_three_levels_and_256_rows(planner: Planner) -> None:
    system, own = list(range(1024)), [200 + row for row in range(256)]
    groups = [list(range(10_000 * group, 10_000 * group + 512)) for group in range(1, 17)]
    private = [list(range(10**6 * (row + 1), 10**6 * (row + 1) + tokens)) for row, tokens in enumerate(own)]
    plan, contexts = planned([[*system, *groups[row // 16], *tokens] for row, tokens in enumerate(private)], 64)
    made = arrays(*cut(forest_items(plan, planner), Grain(8, 4, 2)), 256)
    check(made, contexts)
    # Expected from the token ids: 16 chunks that all rows share, 8 for every group of 16 rows, and own chunks.
    assert [len(context) for context in contexts] == [16 + 8 + -(-tokens // 64) for tokens in own]
    readers = Counter(Counter(chain.from_iterable(contexts)).values())
    assert readers == {256: 16, 16: 16 * 8, 1: sum(-(-tokens // 64) for tokens in own)}
