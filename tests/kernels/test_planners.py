"""What each planner merges, on small forests whose answer follows by hand."""

from __future__ import annotations

import pytest

from chunkbench.kernels.items import items_of_forest
from chunkbench.kernels.planners import Planner, cascade, flat, node_wise, pack, tree_fused, two_phase
from chunkbench.kvcache import PrefixTree

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


def test_two_phase_counts_rows_that_end_in_a_segment() -> None:
    tree = PrefixTree(CHUNK)
    for branch in (1, 2):
        for _ in range(16):
            tree.join([7] * 1024 + [branch] * CHUNK)
    plan = tree.plan()
    # Read below the root, its chunks would be read by every row that ends there.
    assert not two_phase(plan, 1).any()


def test_two_phase_shares_what_is_long_for_its_rows_and_merges_what_is_short() -> None:
    # 32 rows: reading alone costs 32 * 2 * (1 - 1/20) - 0.25 = 60.6 a token, the partial results 104 * 32: 55 tokens.
    assert merged(two_phase, [(3, leaves(32))]) == [False] + [True] * 32
    assert merged(two_phase, [(4, leaves(32))]) == [False] * 33
    # With sixteen query heads a KV head, 32 * 2 * (1 - 16/20) - 0.25 a token against 104 * 512: 4243 tokens.
    assert merged(two_phase, [(265, leaves(32))], group=16) == [False] + [True] * 32
    assert merged(two_phase, [(266, leaves(32))], group=16) == [False] * 33
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
