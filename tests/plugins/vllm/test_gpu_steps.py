"""Decoding rows over blocks in vLLM's own layout, by the GPU kernels, against float64 attention."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.kernels.reference import attention
from chunkbench.kernels.triton.tuning import Tuning
from chunkbench.plugins.vllm.gpu_steps import BlockPlaces, DecodeSteps
from tests.kernels.triton.interpreter import mend_interpreter
from tests.pairs import values

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    mend_interpreter()

SMALL = Tuning(
    wide=64, warps=4, tile=32, stages=3, narrow_tile=32, narrow_stages=3, blocks=1, narrow_blocks=1,
    merge_tile=16, merge_warps=4, fold=2,
)  # fmt: skip
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2e-2}
BLOCKS, LAYERS, HEADS, SCALE = 96, 2, 4, 0.17


def caches(kv_heads: int, size: int, dim: int, dtype: torch.dtype, tokens_first: bool) -> list[torch.Tensor]:
    """K/V caches `[blocks, kv_heads, tokens, 2 * dim]` as vLLM allocates them: heads or tokens outermost in a block."""
    numbers = torch.Generator().manual_seed(size)
    shape = (BLOCKS, size, kv_heads, 2 * dim) if tokens_first else (BLOCKS, kv_heads, size, 2 * dim)
    made = [torch.randn(*shape, generator=numbers).to(DEVICE, dtype) for _ in range(LAYERS)]
    return [cache.transpose(1, 2) if tokens_first else cache for cache in made]


def expected(q: torch.Tensor, cache: torch.Tensor, table: list[int], length: int) -> torch.Tensor:
    """Attention of one row q `[heads, dim]`."""
    held = cache[table].transpose(1, 2).reshape(-1, cache.shape[1], cache.shape[3])[:length]
    return attention(q, *held.chunk(2, -1), SCALE)


@pytest.mark.parametrize(
    ("shape", "tokens_first"),
    values([(4, 16, 64, torch.float16), (2, 32, 64, torch.bfloat16), (1, 64, 128, torch.float16)], [False, True]),
    ids=str,
)
def test_sequences_that_share_join_grow_and_leave(shape: tuple[int, int, int, torch.dtype], tokens_first: bool) -> None:
    kv_heads, size, dim, dtype = shape
    layers = caches(kv_heads, size, dim, dtype, tokens_first)
    steps = DecodeSteps(layers[0], HEADS, rows=6, blocks=BLOCKS, tuning=SMALL)
    generation = steps.generation
    chance, numbers = random.Random(size), torch.Generator().manual_seed(1)
    free = list(range(BLOCKS))
    chance.shuffle(free)
    live: list[tuple[list[int], int]] = []  # table and length
    for step in range(9):
        live = [(table, length + 1) for table, length in live]
        if step % 3 == 0 and len(live) < 6:
            parent, known = chance.choice(live) if live else ([], 0)
            shared = chance.randrange(known // size + 1)
            live.append((list(parent[:shared]), shared * size + chance.choice([1, size - 1, size, 2 * size + 3])))
        if step == 5:
            live.pop(0)
        for table, length in live:
            table += [free.pop() for _ in range(-(-length // size) - len(table))]
        width = max(len(table) for table, _ in live) + 2
        tables = np.array([table + [0] * (width - len(table)) for table, _ in live], np.int32)
        steps.plan(tables, np.array([length for _, length in live]))
        for cache in layers:
            # A captured graph has more rows than the step.
            q = torch.randn(len(live) + 2, HEADS, dim, generator=numbers).to(DEVICE, dtype)
            out = torch.full_like(q, 7.0)
            steps.attend(q, out, cache, SCALE)
            for row, (table, length) in enumerate(live):
                wanted = expected(q[row], cache, table, length)
                torch.testing.assert_close(out[row].double(), wanted, rtol=0, atol=TOLERANCE[dtype])
            assert (out[len(live) :] == 7.0).all()
    assert steps.generation == generation  # no captured graph became invalid


def test_a_step_without_decoding_rows() -> None:
    (cache, _) = caches(4, 16, 64, torch.float16, False)
    steps = DecodeSteps(cache, HEADS, rows=4, blocks=BLOCKS, tuning=SMALL)
    steps.plan(np.empty((0, 3), np.int32), np.empty(0, np.int64))
    q = torch.ones(2, HEADS, 64, dtype=torch.float16, device=DEVICE)
    out = torch.full_like(q, 7.0)
    steps.attend(q, out, cache, SCALE)
    assert (out == 7.0).all()


def test_blocks_that_the_kernels_cannot_address_are_refused() -> None:
    odd = torch.zeros(3 * 1001, dtype=torch.float16).as_strided((3, 1, 4, 128), (1001, 512, 128, 1))
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        BlockPlaces(odd)
