"""What a task consists of, and how its parts divide among ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.workloads.ring.schemes import Movement, Scheme, Task

MOVEMENTS: tuple[Movement, ...] = ("ring", "gather", "none", "merge")


def decode(sequences: int, tokens: int, shared: int) -> Task:
    return Task(4, 2, 16, "float32", "decode", tokens, sequences=sequences, shared=shared)


def prefill(causal: bool) -> Task:
    return Task(4, 2, 16, "float32", "prefill", 12, causal)


def test_a_prefilled_token_attends_to_those_up_to_itself_or_to_all() -> None:
    assert prefill(causal=True).context(3).tolist() == [0, 1, 2, 3]
    assert prefill(causal=False).context(3).tolist() == list(range(12))


def test_sequences_have_the_shared_tokens_and_tokens_of_their_own() -> None:
    task = decode(3, 10, 8)
    assert [task.context(row)[8:].tolist() for row in range(3)] == [[8, 9], [10, 11], [12, 13]]
    assert all(task.context(row)[:8].tolist() == list(range(8)) for row in range(3))


@given(st.integers(1, 20), st.integers(1, 8))
def test_every_sequence_belongs_to_one_rank(sequences: int, ranks: int) -> None:
    rows = [decode(sequences, 8, 8).rows(ranks, rank) for rank in range(ranks)]
    assert np.concatenate(rows).tolist() == list(range(sequences))
    assert max(map(len, rows)) == -(-sequences // ranks)


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 10), st.integers(0, 20))
def test_all_ranks_together_compute_every_pair_once(sequences: int, ranks: int, part: int, own: int) -> None:
    task = decode(sequences, ranks * part + own, ranks * part)
    for movement in MOVEMENTS:
        scheme = Scheme("contiguous", movement, "native")
        assert sum(task.pairs(scheme, ranks, rank) for rank in range(ranks)) == sequences * task.tokens


def test_more_copies_of_k_and_v_need_more_memory() -> None:
    """A merge has one copy, a ring two, a gather one for each rank and the one that it came from; q, and the output."""
    tokens = 1 << 20
    kv, rows = 2 * 16 * 2 * tokens, 16 * (2 + 4) * tokens
    copies = {"merge": 1, "ring": 2, "none": 4, "gather": 5}
    task = Task(1, 1, 16, "bfloat16", "prefill", tokens)
    needed = {movement: task.bytes(Scheme("contiguous", movement, "native"), 4) for movement in MOVEMENTS}
    assert needed == pytest.approx({name: count * kv + rows for name, count in copies.items()}, rel=0.2)
    assert task.bytes(Scheme("contiguous", "ring", "torch-ring"), 4) > needed["ring"]
    # Three sequences share three quarters of their tokens: 3/4 + 3/4 of a sequence.
    step = Task(1, 1, 16, "bfloat16", "decode", tokens, sequences=3, shared=3 * tokens // 4)
    assert step.bytes(Scheme("contiguous", "merge", "native"), 4) == pytest.approx(1.5 * kv, rel=0.2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_inputs_are_the_same_on_every_rank_and_different_for_every_token(dtype: str) -> None:
    task = Task(4, 2, 16, dtype, "decode", 12, sequences=3, shared=8)
    one, other, third = (task.inputs(seed, "cpu") for seed in (5, 5, 6))
    everything = np.arange(8 + 3 * 4)
    k, v = one.keys_values(everything)
    some = np.array([19, 3, 4])
    for whole, part in zip((k, v), other.keys_values(some), strict=True):
        assert torch.equal(whole[some], part)
    assert torch.equal(one.queries(np.array([0, 2]))[1], other.queries(np.array([2]))[0])
    assert (k.shape, one.queries(np.arange(3)).shape) == ((20, 2, 16), (3, 4, 16))
    assert k.dtype == getattr(torch, dtype)
    different = torch.cat([k, v]).flatten(1).unique(dim=0)
    assert len(different) == 2 * 20
    assert not torch.equal(k, third.keys_values(everything)[0])
    many = Task(4, 4, 64, dtype, "prefill", 4096).inputs(0, "cpu").keys_values(np.arange(4096))[0].double()
    assert float(many.mean()) == pytest.approx(0, abs=0.02)
    assert float(many.std()) == pytest.approx(1, abs=0.02)
