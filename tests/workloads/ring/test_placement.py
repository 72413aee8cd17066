"""Layouts: which tokens a rank holds, what its queries see of other ranks' keys, and how the work divides."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.workloads.ring.placement import Layout, pairs, positions, visible

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
layouts = st.sampled_from(LAYOUTS)
all_ranks = st.integers(1, 9)
halves = st.integers(1, 20)
"""Half of a rank's tokens."""


@pytest.mark.parametrize(
    ("layout", "first", "last"),
    [
        ("contiguous", [0, 1, 2, 3], [8, 9, 10, 11]),
        ("striped", [0, 3, 6, 9], [2, 5, 8, 11]),
        ("zigzag", [0, 1, 10, 11], [4, 5, 6, 7]),
    ],
)
def test_twelve_tokens_of_three_ranks(layout: Layout, first: list[int], last: list[int]) -> None:
    assert positions(layout, 12, 3, 0).tolist() == first
    assert positions(layout, 12, 3, 2).tolist() == last


@given(layouts, all_ranks, halves)
def test_each_token_belongs_to_exactly_one_rank(layout: Layout, ranks: int, half: int) -> None:
    tokens = 2 * half * ranks
    held = [positions(layout, tokens, ranks, rank) for rank in range(ranks)]
    assert sorted(np.concatenate(held).tolist()) == list(range(tokens))
    assert {len(own) for own in held} == {2 * half}
    assert all((np.diff(own) > 0).all() for own in held)


@given(st.data(), layouts, all_ranks, halves, st.booleans())
def test_a_query_sees_the_keys_up_to_itself(
    data: st.DataObject, layout: Layout, ranks: int, half: int, causal: bool
) -> None:
    mine, theirs = (
        positions(layout, 2 * half * ranks, ranks, data.draw(st.integers(0, ranks - 1), label=name))
        for name in ("rank of the queries", "rank of the keys")
    )
    seen = visible(mine, theirs, causal)
    assert len(seen) == len(mine)
    for query, count in zip(mine.tolist(), seen.tolist(), strict=True):
        expected = [key for key in theirs.tolist() if not causal or key <= query]
        assert theirs[:count].tolist() == expected


@given(layouts, all_ranks, halves, st.booleans())
def test_the_ranks_compute_all_pairs(layout: Layout, ranks: int, half: int, causal: bool) -> None:
    tokens = 2 * half * ranks
    counts = [pairs(layout, tokens, ranks, rank, causal) for rank in range(ranks)]
    assert sum(counts) == (tokens * (tokens + 1) // 2 if causal else tokens**2)
    held = [positions(layout, tokens, ranks, rank) for rank in range(ranks)]
    assert counts == [sum(int(visible(own, theirs, causal).sum()) for theirs in held) for own in held]


@given(all_ranks, halves)
def test_zigzag_gives_every_rank_the_same_work(ranks: int, half: int) -> None:
    assert len({pairs("zigzag", 2 * half * ranks, ranks, rank, causal=True) for rank in range(ranks)}) == 1


@given(all_ranks, halves)
def test_the_last_rank_of_a_contiguous_ring_has_almost_twice_the_mean(ranks: int, half: int) -> None:
    """c (N - 1) keys before its own c tokens, of which token i sees i + 1; it tends to (2N - 1) / N for long blocks."""
    tokens, c = 2 * half * ranks, 2 * half
    counts = [pairs("contiguous", tokens, ranks, rank, causal=True) for rank in range(ranks)]
    over_mean = Fraction(max(counts) * ranks, sum(counts))
    assert counts.index(max(counts)) == ranks - 1
    assert over_mean == Fraction(c * (2 * ranks - 1) + 1, c * ranks + 1)
    assert abs(over_mean - Fraction(2 * ranks - 1, ranks)) < Fraction(1, c)


@given(all_ranks, halves)
def test_a_striped_rank_has_one_pair_for_each_of_its_tokens_more_than_the_rank_before(ranks: int, half: int) -> None:
    """So ranks differ by less than one pair for each token, of n / 2 that a token sees on average."""
    tokens = 2 * half * ranks
    counts = [pairs("striped", tokens, ranks, rank, causal=True) for rank in range(ranks)]
    assert set(np.diff(counts).tolist()) <= {tokens // ranks}
    assert max(counts) - min(counts) < tokens
