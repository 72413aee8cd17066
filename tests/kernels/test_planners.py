"""What each planner merges, on small forests whose answer follows by hand."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.items import items_of_forest
from chunkbench.kernels.planners import CPU, Costs, Planner, cascade, flat, node_wise, pack, tree_fused, two_phase

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
    ("planner", "expected"),
    [
        (node_wise, "0 000 000 0"),
        (flat, "0 111 111 0"),
        (cascade, "0 011 011 0"),
    ],
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


def test_two_phase_shares_what_is_long_for_its_rows_and_merges_what_is_short() -> None:
    # 32 rows, chunks that cost 16 + 32 tokens to read: alone 32 * 2 * (1 - 1/24) * 48 - 0.25 * 48 = 2932 a chunk, the
    # partial results 160 * 32 = 5120: from 2 chunks on.
    assert merged(two_phase, [(1, leaves(32))]) == [False] + [True] * 32
    assert merged(two_phase, [(2, leaves(32))]) == [False] * 33
    # With sixteen query heads a KV head, 32 * 2 * (1 - 16/24) * 48 - 0.25 * 48 = 1012 a chunk against 160 * 512.
    assert merged(two_phase, [(80, leaves(32))], group=16) == [False] + [True] * 32
    assert merged(two_phase, [(81, leaves(32))], group=16) == [False] * 33
    # Too few queries for the loops of several rows.
    assert merged(two_phase, [(500, leaves(3))]) == [False, True, True, True]


def test_two_phase_counts_the_items_below_a_segment_not_its_rows() -> None:
    # Both inner nodes are shared. So two items would read the root, and that costs less than 64 partial results.
    inner = (100, leaves(32))
    assert merged(two_phase, [(20, [inner, inner])]) == [False, True] + [False] * 32 + [True] + [False] * 32
    assert merged(two_phase, [(20, leaves(64))]) == [False] * 65


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
