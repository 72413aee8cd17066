"""Experiments of `kind: ring`, their layouts, and what they may be computed from: rates."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.experiment import load_experiment
from chunkbench.workloads.ring.methods import CHOICES
from chunkbench.workloads.ring.placement import Layout, Movement, Scheme, pairs, positions, visible
from chunkbench.workloads.ring.rates import Device, Shape, break_even, ideal_share
from chunkbench.workloads.ring.result import RingPoint
from chunkbench.workloads.ring.spec import RingExperiment
from chunkbench.workloads.ring.task import Task
from tests.workloads.made import ring_result

ONE_CONTEXT = "has one context for all sequences, and as many K/V heads as query heads"


def test_the_bundled_experiment_has_a_scheme_for_every_point() -> None:
    experiment = load_experiment("ring")
    assert isinstance(experiment, RingExperiment)
    found = list(experiment.points("cpu", "float32"))
    assert {point.phase for point in found} == {"prefill", "decode"}
    assert any(point.link for point in found)
    able = [{name for name in experiment.implementations if not CHOICES[name].supports(point)} for point in found]
    assert all({"one_process", "ring"} < names for names in able)
    assert set().union(*able) == {*experiment.implementations}, "a scheme is named for nothing"


@pytest.mark.parametrize(
    ("name", "axes", "reason"),
    [
        ("tree_decode", {}, "is for phase: decode"),
        ("striped", {"phase": "decode"}, "is for phase: prefill"),
        ("zigzag", {"mask": "full"}, "balances the work of a causal mask; a full mask needs no balance"),
        ("torch_all_gather", {"mask": "full"}, "balances the work of a causal mask; a full mask needs no balance"),
        ("all_gather", {"mask": "full"}, ""),
        ("torch_ring", {"link": 10**9}, "its transfers cannot be slowed down"),
        ("sdpa", {"link": 10**9}, ""),
        ("pytorch_ring", {"dtype": "bfloat16"}, "ring-attention-pytorch computes in float32"),
        ("pytorch_ring", {"n_p": 4096 + 64}, "needs a multiple of 1024 tokens for each rank"),
        ("pytorch_ring", {"n_p": 4096}, ""),
        ("pytorch_tree", {"phase": "decode", "n_s": 32}, ONE_CONTEXT),
        ("pytorch_tree", {"phase": "decode", "kv_heads": 2}, ONE_CONTEXT),
        ("pytorch_tree", {"phase": "decode"}, ""),
    ],
)
def test_what_a_scheme_cannot_do(name: str, axes: dict[str, object], reason: str) -> None:
    given = {"device": "cpu", "dtype": "float32", "n_p": 64, **axes}
    assert CHOICES[name].supports(RingPoint.model_validate(RingPoint.completed(given))) == reason


MOVEMENTS: tuple[Movement, ...] = ("ring", "gather", "none", "merge")


def decode(sequences: int, tokens: int, shared: int) -> Task:
    return Task(4, 2, 16, "float32", "decode", tokens, sequences=sequences, shared=shared)


def prefill(causal: bool) -> Task:
    return Task(4, 2, 16, "float32", "prefill", 12, causal)


def test_what_tokens_attend_to() -> None:
    assert prefill(causal=True).context(3).tolist() == [0, 1, 2, 3]
    assert prefill(causal=False).context(3).tolist() == list(range(12))
    task = decode(3, 10, 8)
    assert [task.context(row)[8:].tolist() for row in range(3)] == [[8, 9], [10, 11], [12, 13]]
    assert all(task.context(row)[:8].tolist() == list(range(8)) for row in range(3))


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 10), st.integers(0, 20))
def test_every_sequence_and_every_pair_belongs_to_one_rank(sequences: int, ranks: int, part: int, own: int) -> None:
    task = decode(sequences, ranks * part + own, ranks * part)
    rows = [task.rows(ranks, rank) for rank in range(ranks)]
    assert np.concatenate(rows).tolist() == list(range(sequences))
    assert max(map(len, rows)) == -(-sequences // ranks)
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


LAYOUTS: tuple[Layout, ...] = get_args(Layout)
layouts = st.sampled_from(LAYOUTS)
all_ranks = st.integers(1, 9)
halves = st.integers(1, 20)
"""Half of a rank's tokens."""


@given(layouts, all_ranks, halves, st.booleans())
def test_each_token_belongs_to_one_rank_and_ranks_compute_all_pairs(
    layout: Layout, ranks: int, half: int, causal: bool
) -> None:
    tokens = 2 * half * ranks
    held = [positions(layout, tokens, ranks, rank) for rank in range(ranks)]
    assert sorted(np.concatenate(held).tolist()) == list(range(tokens))
    assert {len(own) for own in held} == {2 * half}
    assert all((np.diff(own) > 0).all() for own in held)
    counts = [pairs(layout, tokens, ranks, rank, causal) for rank in range(ranks)]
    assert sum(counts) == (tokens * (tokens + 1) // 2 if causal else tokens**2)
    assert counts == [sum(int(visible(own, theirs, causal).sum()) for theirs in held) for own in held]


@given(all_ranks, halves)
def test_how_layouts_balance_a_causal_mask(ranks: int, half: int) -> None:
    """The last rank of a contiguous ring has (2N - 1) / N of the mean, for long blocks. A striped rank has one pair for
    each of its tokens more than the rank before."""
    tokens, c = 2 * half * ranks, 2 * half
    zigzag, contiguous, striped = (
        [pairs(layout, tokens, ranks, rank, causal=True) for rank in range(ranks)]
        for layout in ("zigzag", "contiguous", "striped")
    )
    assert len(set(zigzag)) == 1
    assert contiguous.index(max(contiguous)) == ranks - 1
    over_mean = Fraction(max(contiguous) * ranks, sum(contiguous))
    assert over_mean == Fraction(c * (2 * ranks - 1) + 1, c * ranks + 1)
    assert set(np.diff(striped).tolist()) <= {c}


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


SHAPE = Shape(tokens=1 << 16, heads=32, kv_heads=32, head_dim=128, element_bytes=2)
all_ranks_of_rates = st.integers(2, 64)


@given(
    st.floats(1e9, 1e16), st.floats(1e6, 1e13), st.sampled_from([2, 4]), st.sampled_from([(32, 32), (32, 8), (8, 1)])
)
def test_a_break_even_block_is_computed_while_it_travels(
    flops: float, rate: float, size: int, heads: tuple[int, int]
) -> None:
    """4 h d c^2 FLOPs of c queries and c keys; 2 c h_kv d numbers of K and V."""
    tokens = Device("any", flops, rate).break_even(size, heads[0] / heads[1])
    compute = 4 * heads[0] * 128 * tokens**2 / flops
    transfer = 2 * tokens * heads[1] * 128 * size / rate
    assert compute == pytest.approx(transfer)


def test_a_causal_mask_hides_half_of_the_first_step() -> None:
    full, causal = (ring_result("ring", rates=(4e10, 2e9), mask=mask) for mask in ("full", "causal"))
    assert break_even(full) == 2 * 4e10 / 2e9  # float32: twice the bytes
    assert break_even(causal) == 4 * 4e10 / 2e9
    assert break_even(ring_result("ring", rates=(4e10, 2e9), mask="full", kv_heads=2)) == 2 * 4e10 / 2e9 / 4
    for rates in ((None, 2e9), (4e10, None)):
        assert break_even(ring_result("ring", rates=rates)) is None


@given(all_ranks_of_rates)
def test_where_transfers_cost_nothing_zigzag_is_ideal_and_the_ring_is_not(ranks: int) -> None:
    """A ring of consecutive blocks has N - 1 whole blocks and one half; the others N half blocks: the work over N."""
    device = Device("any", 1e12, math.inf)
    ring, zigzag, gather = (SHAPE.seconds(device, ranks, order) for order in ("ring", "zigzag", "all_gather"))
    work = 4 * SHAPE.heads * SHAPE.head_dim * SHAPE.tokens**2 / 2
    assert zigzag == pytest.approx(work / ranks / device.flops_per_s)
    assert gather == pytest.approx(zigzag)
    assert ring / zigzag == pytest.approx((2 * ranks - 1) / ranks)
    assert zigzag / ring == pytest.approx(ideal_share(ranks))


@given(all_ranks_of_rates)
def test_where_compute_costs_nothing_every_order_takes_the_time_of_its_bytes(ranks: int) -> None:
    device = Device("any", math.inf, 1e9)
    for order in ("ring", "zigzag", "all_gather"):
        assert SHAPE.seconds(device, ranks, order) == pytest.approx(SHAPE.sent_bytes(ranks) / 1e9)


@given(all_ranks_of_rates, st.floats(1e10, 1e15), st.floats(1e8, 1e12))
def test_hiding_never_makes_an_order_slower_than_compute_and_transfer_one_after_the_other(
    ranks: int, flops: float, rate: float
) -> None:
    device = Device("any", flops, rate)
    ring, zigzag, gather = (SHAPE.seconds(device, ranks, order) for order in ("ring", "zigzag", "all_gather"))
    transfers = SHAPE.sent_bytes(ranks) / rate
    assert transfers <= zigzag * (1 + 1e-9)
    assert zigzag <= min(ring, gather) * (1 + 1e-9)
    assert ring <= transfers + SHAPE.seconds(Device("any", flops, math.inf), ranks, "ring") * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("order", ["ring", "zigzag"])
def test_the_steps_of_an_order_are_those_of_its_layout(ranks: int, order: str) -> None:
    """The most pairs that any rank computes in each step, counted from the layout of many tokens."""
    layout = "contiguous" if order == "ring" else "zigzag"
    shape = Shape(96 * ranks, 1, 1, 16, 2)
    held = [positions(layout, shape.tokens, ranks, rank) for rank in range(ranks)]  # type: ignore[arg-type]
    steps = [
        max(visible(held[rank], held[(rank - step) % ranks], True).sum() for rank in range(ranks))
        for step in range(ranks)
    ]
    counted = 4 * shape.head_dim * sum(map(int, steps)) / 1e9
    seconds = shape.seconds(Device("any", 1e9, math.inf), ranks, order)  # type: ignore[arg-type]
    # Layouts count the diagonal whole: at most one more pair for each token of a rank.
    assert seconds == pytest.approx(counted, abs=4 * shape.head_dim * 96 / 1e9)
