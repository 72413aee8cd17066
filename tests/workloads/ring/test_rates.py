"""What rates of compute and transfer imply."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.workloads.ring.placement import positions, visible
from chunkbench.workloads.ring.rates import Device, Shape, break_even, ideal_share
from tests.workloads.ring.made import ring_result

SHAPE = Shape(tokens=1 << 16, heads=32, kv_heads=32, head_dim=128, element_bytes=2)
all_ranks = st.integers(2, 64)


@given(st.floats(1e9, 1e16), st.floats(1e6, 1e13))
def test_the_break_even_block_is_f_over_b_for_16_bits_and_as_many_kv_heads(flops: float, rate: float) -> None:
    assert Device("any", flops, rate).break_even() == pytest.approx(flops / rate)


@given(
    st.floats(1e9, 1e16),
    st.floats(1e6, 1e13),
    st.sampled_from([2, 4]),
    st.sampled_from([(32, 32), (32, 8), (8, 1)]),
    st.integers(16, 256),
)
def test_a_break_even_block_is_computed_while_it_travels(
    flops: float, rate: float, size: int, heads: tuple[int, int], dim: int
) -> None:
    """4 h d c^2 FLOPs of c queries and c keys; 2 c h_kv d numbers of K and V."""
    tokens = Device("any", flops, rate).break_even(size, heads[0] / heads[1])
    compute = 4 * heads[0] * dim * tokens**2 / flops
    transfer = 2 * tokens * heads[1] * dim * size / rate
    assert compute == pytest.approx(transfer)


def test_a_causal_mask_hides_half_of_the_first_step() -> None:
    full, causal = (ring_result("ring", rates=(4e10, 2e9), mask=mask) for mask in ("full", "causal"))
    assert break_even(full) == 2 * 4e10 / 2e9  # float32: twice the bytes
    assert break_even(causal) == 4 * 4e10 / 2e9
    assert break_even(ring_result("ring", rates=(4e10, 2e9), mask="full", kv_heads=2)) == 2 * 4e10 / 2e9 / 4
    assert break_even(ring_result("ring", rates=(None, 2e9))) is None
    assert break_even(ring_result("ring", rates=(4e10, None))) is None


@pytest.mark.parametrize(("ranks", "share"), [(1, 1), (2, 2 / 3), (4, 4 / 7), (8, 8 / 15)])
def test_the_share_of_the_ideal_that_a_causal_ring_reaches(ranks: int, share: float) -> None:
    assert ideal_share(ranks) == pytest.approx(share)


@given(all_ranks)
def test_where_transfers_cost_nothing_zigzag_is_ideal_and_the_ring_is_not(ranks: int) -> None:
    """A ring of consecutive blocks has N - 1 whole blocks and one half; the others N half blocks: the work over N."""
    device = Device("any", 1e12, math.inf)
    ring, zigzag, gather = (SHAPE.seconds(device, ranks, order) for order in ("ring", "zigzag", "all_gather"))
    work = 4 * SHAPE.heads * SHAPE.head_dim * SHAPE.tokens**2 / 2
    assert zigzag == pytest.approx(work / ranks / device.flops_per_s)
    assert gather == pytest.approx(zigzag)
    assert ring / zigzag == pytest.approx((2 * ranks - 1) / ranks)
    assert zigzag / ring == pytest.approx(ideal_share(ranks))


@given(all_ranks)
def test_where_compute_costs_nothing_every_order_takes_the_time_of_its_bytes(ranks: int) -> None:
    device = Device("any", math.inf, 1e9)
    for order in ("ring", "zigzag", "all_gather"):
        assert SHAPE.seconds(device, ranks, order) == pytest.approx(SHAPE.sent_bytes(ranks) / 1e9)


@given(all_ranks, st.floats(1e10, 1e15), st.floats(1e8, 1e12))
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


def test_bytes_of_a_pass() -> None:
    shape = Shape(4096, 8, 2, 128, 2)
    assert shape.block_bytes(4) == 2 * 1024 * 2 * 128 * 2
    assert shape.sent_bytes(4) == 3 * shape.block_bytes(4)
    assert shape.sent_bytes(1) == 0
