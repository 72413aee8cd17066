"""The tree's segments as paged requests: compares index arrays with the tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.attention.tree import PrefixTree
from chunkbench.baselines.segments import Requests, flat, levels

SIZE = 4


@st.composite
def forests(draw: st.DrawFn) -> PrefixTree:
    """A tree of prompts that continue prefixes of each other, joined in any order.

    Then some tokens are appended, and sometimes one sequence leaves.
    """
    tree = PrefixTree(SIZE)
    prompts: list[list[int]] = []
    for number in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from(prompts)) if prompts and draw(st.booleans()) else []
        prefix = parent[: draw(st.integers(0, len(parent)))]
        private = draw(st.integers(0 if prefix else 1, 11))
        prompts.append(prefix + [100 * number + position for position in range(private)])
    for index in draw(st.permutations(range(len(prompts)))):
        tree.join(prompts[index])
    for step in range(draw(st.integers(0, 6))):
        tree.append([10_000 + 100 * step + row for row in range(len(tree))])
    if len(tree) > 1 and draw(st.booleans()):
        tree.leave(draw(st.sampled_from(tree.sequences)))
    return tree


def pages(requests: Requests, request: int) -> list[int]:
    return requests.indices[requests.kv_indptr[request] : requests.kv_indptr[request + 1]].tolist()


def slots(requests: Requests, request: int) -> list[int]:
    """Slots that a request reads."""
    request_pages = pages(requests, request)
    if not request_pages:
        assert requests.last_page_len[request] == 0
        return []
    assert 1 <= requests.last_page_len[request] <= SIZE
    page_slots = [page * SIZE + offset for page in request_pages for offset in range(SIZE)]
    return page_slots[: len(page_slots) - SIZE + int(requests.last_page_len[request])]


def check_requests(requests: Requests, rows: int) -> None:
    count = len(requests.last_page_len)
    for indptr in (requests.qo_indptr, requests.kv_indptr):
        assert indptr.dtype == np.int32
        assert len(indptr) == count + 1
        assert indptr[0] == 0
    assert (np.diff(requests.qo_indptr) > 0).all()
    assert (np.diff(requests.kv_indptr) >= 0).all()
    assert requests.qo_indptr[-1] == rows
    assert requests.kv_indptr[-1] == len(requests.indices)
    assert requests.indices.dtype == requests.last_page_len.dtype == np.int32


def slots_of(tree: PrefixTree, sequence: int) -> list[int]:
    length = tree.length(sequence)
    return [chunk * SIZE + offset for chunk in tree.path(sequence) for offset in range(SIZE)][:length]


@given(forests())
def test_flat_reads_each_rows_tokens_in_order_and_each_chunk_once(tree: PrefixTree) -> None:
    layout = flat(tree.plan())
    check_requests(layout.requests, len(layout.rows))
    assert len(set(layout.requests.indices.tolist())) == len(layout.requests.indices)
    read = [slots(layout.requests, request) for request in range(len(layout.requests.last_page_len))]
    request_of = np.repeat(np.arange(len(read)), np.diff(layout.requests.qo_indptr))
    for row, sequence in enumerate(tree.sequences):
        states = [s for s in layout.states[row].tolist() if s < len(layout.rows)]
        padding = layout.states[row, len(states) :].tolist()
        assert padding == [len(layout.rows)] * (layout.states.shape[1] - len(states))
        assert (layout.rows[states] == row).all()
        assert [slot for s in states for slot in read[request_of[s]]] == slots_of(tree, sequence)
    assert sorted(layout.states[layout.states < len(layout.rows)].tolist()) == list(range(len(layout.rows)))


@given(forests())
def test_levels_read_every_rows_tokens_and_the_first_merge_has_a_result_for_every_row(tree: PrefixTree) -> None:
    plan = tree.plan()
    tree_levels = levels(plan)
    row_slots: list[list[int]] = [[] for _ in tree.sequences]
    filled = []
    for level in tree_levels:
        check_requests(level, len(tree))
        read = [slots(level, request) for request in range(len(level.last_page_len))]
        by_position = np.repeat(np.arange(len(read)), np.diff(level.qo_indptr))
        filled.append([bool(read[request]) for request in by_position])
        for position, request in enumerate(by_position):
            row_slots[plan.order[position]] += read[request]
    for row, sequence in enumerate(tree.sequences):
        assert row_slots[row] == slots_of(tree, sequence)
    assert all(first or last for first, last in zip(filled[0], filled[-1], strict=True))
    chunks = np.concatenate([level.indices for level in tree_levels])
    assert len(set(chunks.tolist())) == len(chunks)


@given(forests())
def test_requests_grow_with_tokens_appended_inside_chunks(tree: PrefixTree) -> None:
    plan = tree.plan()
    layout, tree_levels = flat(plan), levels(plan)
    tree.append(range(50_000, 50_000 + len(tree)))
    new_plan = tree.plan()
    if new_plan is not plan:
        return
    np.testing.assert_equal(vars(layout.requests.grown(new_plan)), vars(flat(new_plan).requests))
    np.testing.assert_equal(vars(tree_levels[-1].grown(new_plan)), vars(levels(new_plan)[-1]))
    for shared in tree_levels[:-1]:
        np.testing.assert_equal(vars(shared.grown(new_plan)), vars(shared))


@pytest.mark.parametrize(
    ("prompts", "requests", "most_states", "level_count"),
    [
        pytest.param([[1, 2], [3], [4]], 3, 1, 1, id="nothing shared"),
        pytest.param([[*range(8), 10], [*range(8), 20], [*range(8), 30]], 4, 2, 2, id="one prefix"),
        pytest.param([[*range(8)]] * 3, 1, 1, 1, id="everything shared"),
        pytest.param([[*range(8), 9], [*range(4), 20], [*range(8), 30]], 5, 3, 3, id="uneven tree"),
    ],
)
def test_sizes_of_flat_and_levels(prompts: list[list[int]], requests: int, most_states: int, level_count: int) -> None:
    tree = PrefixTree(SIZE)
    for prompt in prompts:
        tree.join(prompt)
    layout = flat(tree.plan())
    assert len(layout.requests.last_page_len) == requests
    assert layout.states.shape == (len(prompts), most_states)
    assert len(levels(tree.plan())) == level_count
