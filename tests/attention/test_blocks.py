import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.attention.blocks import BlockTables


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


def test_sharing_maps_a_prefix_to_the_same_blocks():
    shared, private = BlockTables(2, share=True), BlockTables(2, share=False)
    for tables in (shared, private):
        for own in (5, 6):
            tables.join([1, 2, 3, 4, own])
    assert shared.table[0, :2].tolist() == shared.table[1, :2].tolist()
    assert shared.tree.pool.in_use == 4
    assert len(set(private.table[:, :3].ravel().tolist())) == 6
    assert private.tree.pool.in_use == 6


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
