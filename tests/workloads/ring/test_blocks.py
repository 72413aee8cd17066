"""Block kernels and running results against float64."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chunkbench.kernels import cpu
from chunkbench.kernels.integers import Ints
from chunkbench.kernels.reference import attention
from chunkbench.workloads.ring.blocks import CHUNK_SIZE, BlockKernel, FlashBlocks, Heads, NativeBlocks, rectangles
from chunkbench.workloads.ring.placement import Layout, positions, visible
from chunkbench.workloads.ring.running import Running
from tests.attention.conftest import one_thread  # noqa: F401 - a fixture
from tests.pairs import pairs

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
KINDS = {"native": NativeBlocks, "flash": FlashBlocks}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# PyTorch's operator rounds the output of every call to the dtype.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
never_decreasing = st.integers(0, 30).flatmap(
    lambda most: st.lists(st.integers(0, most), min_size=1, max_size=25).map(sorted)
)


def kernel(kind: str, shape: Heads) -> BlockKernel:
    if kind == "native" and cpu.native() is None:
        pytest.skip(cpu.why_missing())
    made: BlockKernel = KINDS[kind](shape)
    return made


class Numbers:
    """Seeded normal q, K and V of one dtype."""

    def __init__(self, shape: Heads) -> None:
        self._shape, self._random = shape, torch.Generator().manual_seed(0)

    def _normal(self, tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, self._shape.head_dim, generator=self._random).to(self._shape.dtype)

    def queries(self, rows: int) -> torch.Tensor:
        return self._normal(rows, self._shape.heads)

    def keys_values(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._normal(tokens, self._shape.kv_heads), self._normal(tokens, self._shape.kv_heads)


def check(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.shape == expected.shape
    worst, largest = float((got.double() - expected).abs().max()), float(expected.abs().max())
    assert worst <= TOLERANCE[dtype] * largest


def covered(seen: Ints) -> Ints:
    """How often the rectangles cover each pair of a row and a key `[rows, keys]`."""
    counts = np.zeros((len(seen), int(seen.max(initial=0))), np.int64)
    for rows, keys, causal in rectangles(seen):
        assert rows.stop > rows.start
        assert keys.stop > keys.start
        size = (rows.stop - rows.start, keys.stop - keys.start)
        # PyTorch's causal mask begins at the upper left, so only squares mean what they say.
        assert not causal or size[0] == size[1]
        counts[rows, keys] += np.tri(*size, dtype=np.int64) if causal else 1
    return counts


@settings(max_examples=200)
@given(never_decreasing)
@example([0, 0])
@example([0, 2, 2, 3, 4, 9])
def test_rectangles_cover_each_pair_once_whatever_rows_see(seen: list[int]) -> None:
    counts = np.array(seen)
    assert np.array_equal(covered(counts), np.arange(counts.max())[None] < counts[:, None])


def test_few_calls_cover_a_zigzag_block() -> None:
    """Of another rank's block all rows, or the later half of them, see one half or all of it."""
    held = [positions("zigzag", 64, 4, rank) for rank in range(4)]
    for mine, theirs in itertools.product(range(4), repeat=2):
        calls = list(rectangles(visible(held[mine], held[theirs], True)))
        if mine == theirs:
            assert calls == [(slice(0, 16), slice(0, 16), True)]
        else:
            assert len(calls) <= 2
            assert not any(causal for _, _, causal in calls)


@pytest.mark.parametrize(
    ("kind", "layout", "dtype", "heads"),
    pairs(["native", "flash"], LAYOUTS, DTYPES, [(4, 4, 32), (6, 2, 64), (8, 1, 16)]),
    ids=str,
)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_a_rank_that_reads_all_blocks_has_its_attention(
    kind: str, layout: Layout, dtype: torch.dtype, heads: tuple[int, int, int], causal: bool
) -> None:
    """Blocks of 70 tokens, which are no multiple of 16, nor of a chunk."""
    ranks, tokens = 3, 210
    shape = Heads(*heads, dtype)
    blocks, numbers = kernel(kind, shape), Numbers(shape)
    k, v = numbers.keys_values(tokens)
    q = numbers.queries(tokens)
    held = [positions(layout, tokens, ranks, rank) for rank in range(ranks)]
    for rank in range(ranks):
        running = Running(len(held[rank]), shape.heads, shape.head_dim)
        for step in range(ranks):
            source = held[(rank - step) % ranks]
            block = blocks.block(len(source))
            blocks.fill(block, k[source], v[source])
            blocks.add(q[held[rank]], block, len(source), visible(held[rank], source, causal), running)
        seen = [row + 1 if causal else tokens for row in held[rank]]
        expected = [attention(q[row], k[:n], v[:n]) for row, n in zip(held[rank], seen, strict=True)]
        check(running.finish(), torch.stack(expected), dtype)


@settings(max_examples=30)
@given(st.sampled_from(sorted(KINDS)), never_decreasing, st.integers(0, 40))
@example("native", [0, 1], 1)
@example("native", [1, 1, 5], 0)
@example("native", [3, *range(60, 67)], 1)
@example("flash", [0, 3, 4, 9], 1)
def test_rows_over_the_first_tokens_of_a_block(kind: str, seen: list[int], more: int) -> None:
    """Rows that see nothing stay without a result; of the others none reads too far."""
    shape = Heads(2, 2, 16, torch.float32)
    blocks, numbers, tokens = kernel(kind, shape), Numbers(shape), max(1, seen[-1] + more)
    q, (k, v) = numbers.queries(len(seen)), numbers.keys_values(tokens)
    block = blocks.block(tokens)
    blocks.fill(block, k, v)
    running = Running(len(seen), shape.heads, shape.head_dim)
    blocks.add(q, block, tokens, np.array(seen), running)
    nothing = seen.count(0)
    assert torch.equal(running.outputs[:nothing], torch.zeros(nothing, 2, 16))
    assert torch.equal(running.stats[:nothing], torch.tensor([-torch.inf, 0.0]).repeat(nothing, 2, 1))
    if nothing < len(seen):
        expected = [attention(row, k[:n], v[:n]) for row, n in zip(q[nothing:], seen[nothing:], strict=True)]
        check(running.finish()[nothing:], torch.stack(expected), shape.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 2, 3 * CHUNK_SIZE + 17])
def test_sequences_of_a_block_each_have_a_row(tokens: int, dtype: torch.dtype) -> None:
    """Rows 1, 4 and 5 of six have a sequence each; the other rows stay as they are."""
    shape = Heads(4, 2, 32, dtype)
    blocks, numbers = kernel("native", shape), Numbers(shape)
    assert isinstance(blocks, NativeBlocks)
    rows, q = np.array([1, 4, 5]), numbers.queries(6)
    sequences = [numbers.keys_values(tokens) for _ in rows]
    running = Running(6, shape.heads, shape.head_dim)
    blocks.add_sequences(q, blocks.sequences(sequences), tokens, rows, running)
    expected = [attention(q[row], *kv) for row, kv in zip(rows, sequences, strict=True)]
    check(running.finish()[rows], torch.stack(expected), dtype)
    assert torch.equal(running.stats[[0, 2, 3]], torch.tensor([-torch.inf, 0.0]).repeat(3, shape.heads, 1))


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    first=st.integers(0, 4),
    scale=st.sampled_from([1.0, 30.0]),
)
def test_parts_add_up_to_attention_over_all_of_them(sizes: list[int], first: int, scale: float) -> None:
    """Only the rows from `first` on see any part but the first one."""
    random = torch.Generator().manual_seed(0)
    q = torch.randn(5, 2, 16, generator=random, dtype=torch.float64) * scale
    parts = [torch.randn(2, n, 2, 16, generator=random, dtype=torch.float64) for n in sizes]
    running = Running(5, 2, 16)
    running.add(slice(0, 5), torch.ones(5, 2, 16), torch.full((5, 2), 50.0))
    running.reset()  # forgets what was added
    for number, (k, v) in enumerate(parts):
        rows = slice(first if number else 0, 5)
        log_sums = (torch.einsum("bhd,nhd->bhn", q[rows], k) / 4).logsumexp(-1)
        running.add(rows, attention(q[rows], k, v).float(), log_sums.float())
    k, v = torch.cat(parts, 1)
    expected = torch.cat([attention(q[:first], *parts[0]), attention(q[first:], k, v)])
    check(running.finish(), expected, torch.float32)


@pytest.mark.parametrize(("rows", "heads"), [(1, 1), (1, 2), (3, 1)])
def test_a_rank_alone_merges_its_own_results(rows: int, heads: int) -> None:
    running = Running(rows, heads, 16)
    running.add(slice(None), torch.ones(rows, heads, 16), torch.full((rows, heads), 5.0))
    stats = running.stats.clone()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        running.merge()
    finally:
        dist.destroy_process_group()
    assert torch.equal(running.stats, stats)
    torch.testing.assert_close(running.finish(), torch.ones(rows, heads, 16))
