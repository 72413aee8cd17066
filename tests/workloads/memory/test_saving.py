"""Savings and empty slots of K/V memory, against a prefix tree of integers."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tree import PrefixTree
from chunkbench.workloads.memory.saving import saving


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture has no state
@given(
    n_s=st.integers(0, 70),
    private=st.integers(0, 40),
    n_c=st.integers(1, 20),
    b=st.integers(1, 5),
    prompts=st.integers(1, 3),
    c=st.sampled_from([1, 4, 16]),
)
def test_empty_slots_of_a_real_tree_stay_within_the_bound(
    n_s: int, private: int, n_c: int, b: int, prompts: int, c: int, facts
) -> None:
    n_p, prompts = max(1, n_s + private), min(prompts, b)
    pool = ChunkPool()
    tree = PrefixTree(c, pool)
    token = iter(range(1, 1 << 20))
    shared = [[next(token) for _ in range(n_s)] for _ in range(prompts)]
    for k in range(b):
        tree.join([*shared[k % prompts], *(next(token) for _ in range(n_p - n_s))])
    for _ in range(n_c):
        tree.append([next(token) for _ in range(b)])
    axes = {"n_p": n_p, "n_s": n_s, "n_c": n_c, "batch_size": b, "prompts": prompts, "chunk_size": c}
    memory = saving(None, facts(**axes, kv_bytes=pool.in_use * c * facts().token_bytes))
    assert memory is not None
    assert memory.empty is not None
    assert -1e-9 <= memory.empty <= memory.bound + 1e-9
    assert memory.at_batch <= memory.limit * (1 + 1e-9)


def test_ragged_prompts_and_trees_have_no_saving(facts) -> None:
    assert saving(None, facts(n_p=(3, 9), kv_bytes=1)) is None
    assert saving(None, facts(n_s=None, tree=((4, 2),), kv_bytes=1)) is None


def test_many_sequences_come_near_the_limit(facts) -> None:
    memory = saving(None, facts(n_p=1024, n_s=768, n_c=0, batch_size=1 << 20))
    assert memory is not None
    assert memory.limit == 4
    assert memory.at_batch == pytest.approx(4, rel=1e-4)
