"""The tree's segments as paged requests: index arrays against the tree, and results merged against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.baselines.segments import Requests, flat, levels
from chunkbench.kernels.reference import attention
from chunkbench.kvcache import PrefixTree

SIZE, HEADS, KV_HEADS, D = 4, 4, 2, 8


@st.composite
def forests(draw: st.DrawFn) -> PrefixTree:
    """Sequences that go on from prefixes of each other, in any order, then some tokens appended and some rows gone."""
    tree = PrefixTree(SIZE)
    prompts: list[list[int]] = []
    for token in range(draw(st.integers(1, 9))):
        before = draw(st.sampled_from(prompts)) if prompts and draw(st.booleans()) else []
        kept = before[: draw(st.integers(0, len(before)))]
        own = draw(st.integers(0 if kept else 1, 11))
        prompts.append(kept + [100 * token + place for place in range(own)])
    for place in draw(st.permutations(range(len(prompts)))):
        tree.join(prompts[place])
    for step in range(draw(st.integers(0, 6))):
        tree.append([10_000 + 100 * step + row for row in range(len(tree))])
    if len(tree) > 1 and draw(st.booleans()):
        tree.leave(draw(st.sampled_from(tree.sequences)))
    return tree


def pages(requests: Requests, request: int) -> list[int]:
    return requests.indices[requests.kv_indptr[request] : requests.kv_indptr[request + 1]].tolist()


def slots(requests: Requests, request: int) -> list[int]:
    """Slots that a request reads."""
    named = pages(requests, request)
    if not named:
        assert requests.last_page_len[request] == 0
        return []
    assert 1 <= requests.last_page_len[request] <= SIZE
    whole = [page * SIZE + place for page in named for place in range(SIZE)]
    return whole[: len(whole) - SIZE + int(requests.last_page_len[request])]


def check_form(requests: Requests, rows: int) -> None:
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
    return [chunk * SIZE + place for chunk in tree.path(sequence) for place in range(SIZE)][:length]


@given(forests())
def test_flat_every_row_reads_its_own_tokens_in_order_and_every_chunk_is_read_once(tree: PrefixTree) -> None:
    form = flat(tree.plan())
    check_form(form.requests, len(form.rows))
    assert len(set(form.requests.indices.tolist())) == len(form.requests.indices)
    read = [slots(form.requests, r) for r in range(len(form.requests.last_page_len))]
    request_of = np.repeat(np.arange(len(read)), np.diff(form.requests.qo_indptr))
    for row, sequence in enumerate(tree.sequences):
        states = [s for s in form.states[row].tolist() if s < len(form.rows)]
        assert form.states[row, len(states) :].tolist() == [len(form.rows)] * (form.states.shape[1] - len(states))
        assert (form.rows[states] == row).all()
        assert [slot for s in states for slot in read[request_of[s]]] == slots_of(tree, sequence)
    assert sorted(form.states[form.states < len(form.rows)].tolist()) == list(range(len(form.rows)))


@given(forests())
def test_levels_together_read_every_rows_tokens_and_the_first_two_merged_are_never_empty(tree: PrefixTree) -> None:
    plan = tree.plan()
    found = levels(plan)
    got: list[list[int]] = [[] for _ in tree.sequences]
    filled = []
    for level in found:
        check_form(level, len(tree))
        read = [slots(level, request) for request in range(len(level.last_page_len))]
        by_position = np.repeat(np.arange(len(read)), np.diff(level.qo_indptr))
        filled.append([bool(read[request]) for request in by_position])
        for position, request in enumerate(by_position):
            got[plan.order[position]] += read[request]
    for row, sequence in enumerate(tree.sequences):
        assert got[row] == slots_of(tree, sequence)
    assert all(first or last for first, last in zip(filled[0], filled[-1], strict=True))
    named = np.concatenate([level.indices for level in found])
    assert len(set(named.tolist())) == len(named)


@given(forests())
def test_requests_grow_with_tokens_appended_inside_chunks(tree: PrefixTree) -> None:
    plan = tree.plan()
    form, found = flat(plan), levels(plan)
    tree.append(range(50_000, 50_000 + len(tree)))
    now = tree.plan()
    if now is not plan:
        return
    np.testing.assert_equal(vars(form.requests.grown(now)), vars(flat(now).requests))
    np.testing.assert_equal(vars(found[-1].grown(now)), vars(levels(now)[-1]))
    for shared in found[:-1]:
        np.testing.assert_equal(vars(shared.grown(now)), vars(shared))


@settings(max_examples=30)
@given(tree=forests(), seed=st.integers(0, 1 << 30))
def test_flat_results_merge_to_attention_in_float64(tree: PrefixTree, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    k, v = normal(tree.pool.capacity * SIZE, KV_HEADS, D), normal(tree.pool.capacity * SIZE, KV_HEADS, D)
    q = normal(len(tree), HEADS, D)
    form = flat(tree.plan())
    out, lse = (
        torch.zeros(len(form.rows) + 1, HEADS, D).double(),
        torch.full((len(form.rows) + 1, HEADS), -1e30).double(),
    )
    for request in range(len(form.requests.last_page_len)):
        rows = slice(int(form.requests.qo_indptr[request]), int(form.requests.qo_indptr[request + 1]))
        chosen = slots(form.requests, request)
        out[rows] = attention(q[form.rows[rows]], k[chosen], v[chosen])
        keys = k[chosen].repeat_interleave(HEADS // KV_HEADS, 1)
        lse[rows] = (torch.einsum("rhd,nhd->rhn", q[form.rows[rows]], keys) * D**-0.5).logsumexp(-1)
    weights = torch.softmax(lse[form.states], 1)[..., None]
    merged = (weights * out[form.states]).sum(1)
    for row, sequence in enumerate(tree.sequences):
        chosen = slots_of(tree, sequence)
        torch.testing.assert_close(merged[row], attention(q[row], k[chosen], v[chosen]))


@pytest.mark.parametrize(
    ("prompts", "requests", "deepest", "deep"),
    [
        pytest.param([[1, 2], [3], [4]], 3, 1, 1, id="nothing shared"),
        pytest.param([[*range(8), 10], [*range(8), 20], [*range(8), 30]], 4, 2, 2, id="one prefix"),
        pytest.param([[*range(8)]] * 3, 1, 1, 1, id="everything shared"),
        pytest.param([[*range(8), 9], [*range(4), 20], [*range(8), 30]], 5, 3, 3, id="uneven tree"),
    ],
)
def test_forms_by_example(prompts: list[list[int]], requests: int, deepest: int, deep: int) -> None:
    tree = PrefixTree(SIZE)
    for prompt in prompts:
        tree.join(prompt)
    form = flat(tree.plan())
    assert len(form.requests.last_page_len) == requests
    assert form.states.shape == (len(prompts), deepest)
    assert len(levels(tree.plan())) == deep
