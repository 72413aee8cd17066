"""Block tables, pools, and counting equal tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.attention.blocks import BlockTables
from chunkbench.attention.errors import PoolExhausted
from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tokens import alike


def read(tables, memory):
    """The tokens of every sequence, read through the table as paged attention does."""
    size = tables.block_size
    return [
        [int(memory[tables.table[row, n // size] * size + n % size]) for n in range(length)]
        for row, length in enumerate(tables.lengths)
    ]


@settings(max_examples=40, deadline=None)
@given(
    st.booleans(),
    st.integers(1, 4),
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=12),
    st.integers(0, 12),
)
def test_tables_map_to_the_tokens(share, block_size, prompts, steps):
    tables = BlockTables(block_size, share)
    memory = np.full(1000, -1)
    for prompt in prompts:
        joined = tables.join(prompt)
        assert share or joined.cached == 0
        memory[joined.slots] = prompt[joined.cached :]
    assert read(tables, memory) == prompts
    expected = [list(prompt) for prompt in prompts]
    for step in range(steps):
        tokens = [100 * step + row for row in range(len(prompts))]
        memory[tables.append(tokens)] = tokens
        for row, token in enumerate(tokens):
            expected[row].append(token)
    assert read(tables, memory) == expected
    for sequence, prompt in zip(tables.tree.sequences, prompts, strict=True):
        tables.truncate(sequence, len(prompt))
    assert read(tables, memory) == prompts
    for sequence, prompt in zip(tables.tree.sequences, prompts, strict=True):
        copy = tables.truncate(sequence, -(-len(prompt) // 2))
        if copy is not None:
            source, target = (block * block_size + np.arange(copy.tokens) for block in (copy.source, copy.target))
            memory[target] = memory[source]
    halves = [prompt[: -(-len(prompt) // 2)] for prompt in prompts]
    assert read(tables, memory) == halves
    memory[tables.append(range(len(prompts)))] = range(len(prompts))
    halves = [[*half, row] for row, half in enumerate(halves)]
    assert read(tables, memory) == halves
    tables.tree.leave(tables.tree.sequences[0])
    assert read(tables, memory) == halves[1:]


def test_the_table_is_contiguous_and_keeps_its_width_up_to_max_tokens():
    tables = BlockTables(16, share=False, max_tokens=100)
    for _ in range(9):
        tables.join(range(33))
    for step in range(67):
        tables.append([step] * 9)
        assert tables.table.shape == (9, 7)
        assert tables.table.flags.c_contiguous
    assert tables.table.dtype == np.int32
    assert tables.lengths.dtype == np.int32


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 6), st.sets(st.integers(0, 20))), max_size=20), st.integers(1, 25))
def test_a_pool_hands_out_the_lowest_free_ids(actions: list[int | set[int]], limit: int) -> None:
    """A number asks for so many ids, a set gives back those of its ids that are in use."""
    capacities = [0]
    pool = ChunkPool(limit, capacities.append)
    used: set[int] = set()
    for action in actions:
        if isinstance(action, set):
            pool.release(used & action)
            used -= action
        elif len(used) + action > limit:
            needed = f"{action} more chunks are needed, but {len(used)} of at most {limit}"
            with pytest.raises(PoolExhausted, match=needed):
                pool.allocate(action)
        else:
            ids = pool.allocate(action)
            assert ids == sorted(set(range(limit)) - used)[:action]
            used.update(ids)
        assert pool.in_use == len(used) <= pool.capacity <= limit
        assert all(chunk < pool.capacity for chunk in used)
    assert capacities == sorted({*capacities})
    assert capacities[-1] == pool.capacity


def test_a_pool_grows_to_exactly_what_is_reserved_and_in_few_steps_on_demand() -> None:
    pool = ChunkPool(limit=2000)
    for chunks in (100, 50):
        pool.reserve(chunks)
        assert pool.capacity == 100
    capacities = set()
    for _ in range(1000):
        pool.allocate(1)
        capacities.add(pool.capacity)
    assert len(capacities) < 10
    assert pool.capacity <= 1500
    with pytest.raises(PoolExhausted):
        pool.reserve(2001)
    with pytest.raises(ValueError, match="at least 1"):
        ChunkPool(limit=0)


@pytest.mark.parametrize("ids", [[1, 1], [0, 9], [2, 0, 2]])
def test_a_release_with_a_repeated_or_free_id_releases_nothing(ids):
    pool = ChunkPool()
    pool.allocate(3)
    with pytest.raises(ValueError, match="not all in use"):
        pool.release(ids)
    assert pool.in_use == 3


def test_a_failed_growth_allocates_nothing():
    def no_room(capacity):
        raise MemoryError(capacity)

    pool = ChunkPool(make_room=no_room)
    for call in (pool.allocate, pool.reserve):
        with pytest.raises(MemoryError):
            call(3)
    assert (pool.in_use, pool.capacity) == (0, 0)


ITEMS = st.lists(st.integers(0, 2), max_size=12)


@pytest.mark.parametrize("kind", [list, tuple, bytes])
@given(one=ITEMS, other=ITEMS)
def test_alike_counts_equal_leading_items(
    kind: Callable[[list[int]], Sequence[Any]], one: list[int], other: list[int]
) -> None:
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    assert alike(kind(one), kind(other)) == equal
