"""What tests of kernels start from: prompts that share prefixes, the plan of their tree, a set of instructions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.plan import Plan


@st.composite
def prompts(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that share prefixes at any depth: each continues a prefix of an earlier prompt."""
    lists: list[list[int]] = []
    for number in range(draw(st.integers(1, 20))):
        base = draw(st.sampled_from(lists)) if lists and draw(st.booleans()) else []
        prefix = base[: draw(st.integers(0, len(base)))]
        own = draw(st.integers(0 if prefix else 1, 120))
        lists.append([*prefix, *range(1000 * (number + 1), 1000 * (number + 1) + own)])
    return lists


def planned(drawn: list[list[int]], chunk_size: int) -> tuple[Plan, list[list[int]]]:
    """The plan of a tree with these sequences, and the chunk ids of every row in token order."""
    tree = PrefixTree(chunk_size)
    for ids in drawn:
        tree.join(ids)
    return tree.plan(), [tree.path(sequence) for sequence in tree.sequences]


@contextmanager
def instruction_set(isa: str) -> Iterator[None]:
    """Native kernels that are made in here use these instructions; "" means the best."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHUNKBENCH_ISA", isa)
        yield
