"""Plans of the native kernels: however items are cut, every row reads each of its chunks exactly once."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import NativeDecode
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
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kernels.items import Items, PromptRows, items_of_forest, items_of_prompts, items_of_tables
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.planners import CPU, Costs, Planner, cascade, flat, node_wise, pack, tree_fused, two_phase
from chunkbench.kernels.reference import attention
from tests.kernels.pieces import planned, prompts


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
    for index, (first, count, first_row, rows, tail, _, partial, first_fold, folds, _) in enumerate(
        made.items.tolist()
    ):
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


def test_few_queries_read_several_heads_chunk_by_chunk_and_many_head_by_head() -> None:
    own = [list(range(100 * row, 100 * row + 16)) for row in range(32)]
    grain = Grain(2, 32, 1)
    assert cut(table_items(own), grain)[1].tolist() == [HEADS_TOGETHER] * 32
    # A block that two tables share: its readers go head by head, so that its K and V stay in the cache.
    shared = [[7, *row] for row in own[:2]] + own[2:]
    assert sorted(cut(table_items(shared), grain)[1].tolist()) == [1, 1] + [HEADS_TOGETHER] * 30
    plan, _ = planned([[*range(320), *range(1000 * (row + 1), 1000 * (row + 1) + 320)] for row in range(9)], 16)
    items, heads = cut(forest_items(plan, node_wise), grain)
    assert set(heads[items.row_count > 1].tolist()) == {1}
    assert set(heads[items.row_count == 1].tolist()) == {32 // STAGES}


def test_short_sequences_are_not_cut() -> None:
    items, _ = cut(table_items([list(range(2 * MIN_CHUNKS - 1))]), Grain(64, 1, 1))
    assert (items.chunk_count.tolist(), items.tail_row.tolist()) == ([2 * MIN_CHUNKS - 1], [0])
    for rows in (0, 100):
        contexts = [[row] for row in range(rows)]
        made = arrays(*cut(table_items(contexts), Grain(2, 4, 1)), rows)
        check(made, contexts)
        assert (len(made.items), len(made.folds), made.partial_items) == (rows, 0, 0)


CHUNK = 16
Node = tuple[int, list["Node"]]  # type: ignore[misc]
"""Chunks of a segment, and what comes behind it; nothing: a sequence ends."""


def merged(planner: Planner, roots: list[Node], group: int = 1) -> list[bool]:
    """What a planner says of each segment, depth first; of roots, where it says nothing, False."""
    tree, names = PrefixTree(CHUNK), iter(range(1, 10**6))

    def add(node: Node, before: list[int]) -> None:
        chunks, below = node
        path = [*before, *([next(names)] * (chunks * CHUNK))]
        for child in below:
            add(child, path)
        if not below:
            tree.join(path)

    for root in roots:
        add(root, [])
    plan = tree.plan()
    return [bool(told) and parent >= 0 for told, parent in zip(planner(plan, group), plan.parents, strict=True)]


def leaves(count: int, chunks: int = 1) -> list[Node]:
    return [(chunks, [])] * count


TWO_LEVELS: list[Node] = [(8, [(4, leaves(2)), (4, leaves(2))]), (3, [])]
"""A root for four sequences, two nodes for two of them each, and a sequence of its own."""


@pytest.mark.parametrize(
    ("planner", "expected"), [(node_wise, "0 000 000 0"), (flat, "0 111 111 0"), (cascade, "0 011 011 0")]
)
def test_fixed_planners(planner: Planner, expected: str) -> None:
    assert merged(planner, TWO_LEVELS) == [digit == "1" for digit in expected.replace(" ", "")]


def test_flat_has_an_item_for_each_row_also_where_several_rows_end_together() -> None:
    tree = PrefixTree(CHUNK)
    for own in (0, 0, 0, 5):
        tree.join([7] * (2 * CHUNK) + [8] * own)
    plan = tree.plan()
    items = items_of_forest(plan, flat(plan, 1))
    assert items.row_count.tolist() == [1, 1, 1, 1]
    assert sorted(items.chunk_count.tolist()) == [2, 2, 2, 3]


GPU = Costs(item=24, partial=2, chunk=0, reread_queries=1, hidden_queries=np.inf, fewest_queries=0)
"""Reading costs the same for all queries; short segments are merged for the sake of their items and partial results."""


@given(
    parents=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), min_size=2, max_size=12),
    group=st.sampled_from([1, 4, 16]),
    costs=st.sampled_from([CPU, GPU]),
)
def test_two_phase_is_the_cheapest_of_all_choices(parents: list[tuple[int, int]], group: int, costs: Costs) -> None:
    tree, prompts = PrefixTree(CHUNK), [[0] * CHUNK]
    for token, (parent, chunks) in enumerate(parents, 1):
        prompts.append(prompts[parent % len(prompts)] + [token] * (chunks * CHUNK))
    for prompt in prompts:
        tree.join(prompt)
    plan = tree.plan()
    widths = plan.ends - plan.begins
    private = set(plan.chunks[np.repeat(widths == 1, np.diff(plan.starts))].tolist())

    def cost(merged: npt.NDArray[np.bool_]) -> float:
        items, total = items_of_forest(plan, merged), 0.0
        for first, count, rows in zip(items.first_chunk, items.chunk_count, items.row_count, strict=True):
            shared = (CHUNK + costs.chunk) * len(set(items.chunks[first : first + count].tolist()) - private)
            total += shared * costs.reread_queries * max(0.125, 1 - rows * group / costs.hidden_queries)
            total += costs.item + costs.partial * group * rows
        return total

    able = np.flatnonzero((widths > 1) & (widths * group >= costs.fewest_queries))
    totals = []
    for choice in itertools.product((False, True), repeat=len(able)):
        apart = np.zeros(len(widths) + 1, np.bool_)
        apart[able] = choice
        totals.append(cost(~apart[plan.parents] & (plan.parents >= 0)))
    assert cost(two_phase(plan, group, costs)) == pytest.approx(min(totals))


def test_tree_fused_weighs_empty_places_of_tiles_against_partial_results() -> None:
    # 17 rows fill tiles of 64 badly, 16 fill a tile of 16: the first leaf is cheaper with the root's tokens, then
    # nothing is: 0.66 * 15 * 32 for a leaf alone, the more the more tokens it takes along.
    assert merged(tree_fused, [(2, leaves(17, 2))]) == [False, True] + [False] * 16
    assert merged(tree_fused, [(2, leaves(16, 2))]) == [False] * 17


def test_pack_merges_where_no_pack_is_added_or_partial_results_cost_more() -> None:
    # 65 rows take two packs of 64: without the first leaf one pack less is read. Then a leaf adds a pack: it stays.
    assert merged(pack, [(2, leaves(65))]) == [False, True] + [False] * 64
    # 32 rows below each of two nodes: one pack more would read 8 tokens per 4 * 32 of partial results, so both merge.
    inner = (9, leaves(32, 9))
    told = merged(pack, [(8, [inner, inner])])
    assert [told[1], told[34]] == [True, True]
    assert not any(told[2:34])


@pytest.mark.skipif(cpu.native() is None, reason=cpu.why_missing() or "built")
@pytest.mark.parametrize("heads", [2, 33, 64, 80])  # from 64 on an item has room for the queries of one row only
def test_rows_of_many_heads_read_no_later_token(heads: int) -> None:
    tokens, chunk, dim = 50, 32, 16
    random = torch.Generator().manual_seed(heads)
    q = torch.randn(tokens, heads, dim, generator=random)
    k, v = torch.randn(2, tokens, 1, dim, generator=random)
    store = PackedStore(chunk, 1, dim, torch.float32)
    store.grow(2)
    store.fill(np.arange(2), k, v)
    kernel, out = NativeDecode(store, heads), torch.full_like(q, torch.nan)
    items, last_tokens = items_of_prompts([PromptRows(np.arange(2), 0, tokens)], chunk, 0)
    kernel.make(items, tokens)
    kernel.set_last_tokens(last_tokens)
    kernel.decode(q, out)
    expected = torch.stack([attention(q[row], k[: row + 1], v[: row + 1]) for row in range(tokens)])
    assert (out - expected).abs().max() < 1e-5
