"""What prompts share, against the definition taken at its word."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.analysis.sharing import shared_prefix, sharing


def common(*several: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*several, strict=False)))


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


@given(tokens, tokens)
def test_shared_prefix_is_the_common_one(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert shared_prefix(one, other) == common(one, other)


@given(st.lists(tokens, min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 5))
def test_figures_follow_their_definitions(prompts: list[tuple[int, ...]], chunk_size: int, n_c: int) -> None:
    (found,) = sharing({"all": prompts}, chunk_size, n_c)
    shared = [
        max((shared_prefix(one, other) for j, other in enumerate(prompts) if j != i), default=0)
        for i, one in enumerate(prompts)
    ]
    assert found.shared_mean == pytest.approx(sum(shared) / len(shared))
    assert found.shared_max == max(shared)
    assert found.common == (common(*prompts) if len(prompts) > 1 else 0)
    assert found.ratio == pytest.approx(
        sum(s / (len(p) + n_c) for s, p in zip(shared, prompts, strict=True)) / len(shared)
    )
    assert found.tokens == sum(map(len, prompts)) + n_c * len(prompts)
    # A forest of whole chunks: what is stored are its nodes, and what of each prompt fills no chunk.
    chunks = {p[: (i + 1) * chunk_size] for p in prompts for i in range(len(p) // chunk_size)}
    private = sum(len(p) % chunk_size + n_c for p in prompts)
    assert found.held == len(chunks) * chunk_size + private
    assert 0 <= found.saved < 1
