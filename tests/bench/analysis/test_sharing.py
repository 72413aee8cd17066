"""What prompts share, against a direct implementation of the definitions."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.analysis.sharing import shared_prefix, sharing


def common(*sequences: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False)))


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


@given(tokens, tokens)
def test_shared_prefix_counts_equal_leading_tokens(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert shared_prefix(a, b) == common(a, b)


@given(st.lists(tokens, min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 5))
def test_figures_follow_their_definitions(prompts: list[tuple[int, ...]], chunk_size: int, n_c: int) -> None:
    (figures,) = sharing({"all": prompts}, chunk_size, n_c)
    shared = [
        max((shared_prefix(prompt, other) for j, other in enumerate(prompts) if j != i), default=0)
        for i, prompt in enumerate(prompts)
    ]
    assert figures.shared_mean == pytest.approx(sum(shared) / len(shared))
    assert figures.shared_max == max(shared)
    assert figures.common == (common(*prompts) if len(prompts) > 1 else 0)
    assert figures.ratio == pytest.approx(
        sum(s / (len(p) + n_c) for s, p in zip(shared, prompts, strict=True)) / len(shared)
    )
    assert figures.tokens == sum(map(len, prompts)) + n_c * len(prompts)
    # Memory holds the nodes of a forest of whole chunks, and the tokens of each prompt that fill no chunk.
    chunks = {p[: (i + 1) * chunk_size] for p in prompts for i in range(len(p) // chunk_size)}
    private = sum(len(p) % chunk_size + n_c for p in prompts)
    assert figures.held == len(chunks) * chunk_size + private
    assert 0 <= figures.saved < 1
