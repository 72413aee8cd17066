from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.attention.tokens import alike

ITEMS = st.lists(st.integers(0, 2), max_size=12)


@pytest.mark.parametrize("kind", [list, tuple, bytes])
@given(one=ITEMS, other=ITEMS)
def test_alike_counts_equal_leading_items(
    kind: Callable[[list[int]], Sequence[Any]], one: list[int], other: list[int]
) -> None:
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    assert alike(kind(one), kind(other)) == equal
