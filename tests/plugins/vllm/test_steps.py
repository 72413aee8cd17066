"""Attention over blocks as vLLM hands them out, step by step, against float64 attention."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from chunkbench.kernels import cpu
from chunkbench.plugins.vllm.steps import Blocks, Steps
from tests.attention.contexts import causal_attention
from tests.pairs import values

pytestmark = pytest.mark.skipif(cpu.native() is None, reason="needs the native module")

HEADS, LAYERS, BLOCKS = 4, 2, 400
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass
class Live:
    """A sequence: its K and V per layer as far as they are computed, and its block table."""

    length: int
    """Tokens of its prompt, later of all."""
    table: list[int] = field(default_factory=list)
    computed: int = 0
    kv: list[torch.Tensor] = field(default_factory=list)
    """`[2, tokens, kv_heads, d]` of each layer."""


class Engine:
    """Hands out blocks, shares full ones, and checks every row of every step."""

    def __init__(self, size: int, kv_heads: int, dim: int, dtype: torch.dtype, seed: int) -> None:
        self.size, self.kv_heads, self.dim, self.dtype = size, kv_heads, dim, dtype
        self.blocks = Blocks(kv_heads, dim, size, dtype)
        self.steps = Steps(self.blocks, HEADS)
        self.caches = [torch.full((BLOCKS, kv_heads, size, 2 * dim), torch.nan, dtype=dtype) for _ in range(LAYERS)]
        self.free = list(range(BLOCKS))
        self.live: list[Live] = []
        self.chance = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.chance.shuffle(self.free)

    def join(self, own: int, parent: Live | None = None, shared_blocks: int = 0) -> Live:
        sequence = Live(own + shared_blocks * self.size)
        if parent is not None and shared_blocks:
            assert shared_blocks * self.size <= parent.computed
            sequence.table = parent.table[:shared_blocks]
            sequence.computed = shared_blocks * self.size
            sequence.kv = [kv[:, : sequence.computed] for kv in parent.kv]
        else:
            sequence.kv = [torch.empty(2, 0, self.kv_heads, self.dim, dtype=self.dtype) for _ in range(LAYERS)]
        self.live.insert(self.chance.randrange(len(self.live) + 1), sequence)
        return sequence

    def leave(self, sequence: Live) -> None:
        self.live.remove(sequence)
        held = {block for other in self.live for block in other.table}
        self.free += [block for block in sequence.table if block not in held]

    def step(self, budget: int) -> None:
        """Decode all that have their prompts, and compute `budget` tokens of prompts beside them."""
        parts = []
        for sequence in self.live:
            if sequence.computed == sequence.length:
                sequence.length += 1
                count = 1
            else:
                count = min(budget, sequence.length - sequence.computed)
                budget -= count
            if count:
                parts.append((sequence, count))
        if not parts:
            return
        for sequence, count in parts:
            sequence.computed += count
            while len(sequence.table) * self.size < sequence.computed:
                sequence.table.append(self.free.pop())
            new = [self.random(2, count, self.kv_heads) for _ in range(LAYERS)]
            sequence.kv = [torch.cat(pair, 1) for pair in zip(sequence.kv, new, strict=True)]
        width = max(len(sequence.table) for sequence, _ in parts) + 3
        table = np.array([s.table + [0] * (width - len(s.table)) for s, _ in parts], np.int32)
        lengths = np.array([s.computed for s, _ in parts])
        starts = np.cumsum([0, *(count for _, count in parts)])
        self.steps.plan(table, lengths, starts)
        slots = np.concatenate([self.slots(s, count) for s, count in parts] + [np.array([-1])])
        for layer, cache in enumerate(self.caches):
            k, v = (torch.cat([s.kv[layer][i, -count:] for s, count in parts]) for i in range(2))
            padding = torch.zeros(1, self.kv_heads, self.dim, dtype=self.dtype)
            self.blocks.write(cache.data_ptr(), torch.cat([k, padding]), torch.cat([v, padding]), slots)
            q = self.random(int(starts[-1]), HEADS)
            out = torch.empty_like(q)
            self.steps.attend(q, out, cache.data_ptr(), 0.2)
            for row, (sequence, _) in enumerate(parts):
                span = slice(int(starts[row]), int(starts[row + 1]))
                expected = causal_attention(q[span], *sequence.kv[layer], 0.2)
                torch.testing.assert_close(out[span].double(), expected, rtol=0, atol=TOLERANCE[self.dtype])

    def slots(self, sequence: Live, count: int) -> np.ndarray:
        positions = np.arange(sequence.computed - count, sequence.computed)
        return np.array(sequence.table)[positions // self.size] * self.size + positions % self.size

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, self.dim, generator=self.numbers).to(self.dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    values([(16, 4, 64), (64, 2, 128), (32, 1, 80)], [torch.float32, torch.bfloat16, torch.float16]),
    ids=str,
)
def test_steps_of_a_busy_engine(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    size = shape[0]
    engine = Engine(*shape, dtype, seed=size)
    chance = engine.chance
    for step in range(40):
        if step % 3 == 0 and len(engine.live) < 8:
            ready = [s for s in engine.live if s.computed >= size]
            parent = chance.choice(ready) if ready and chance.random() < 0.7 else None
            shared = chance.randrange(1, parent.computed // size + 1) if parent else 0
            engine.join(chance.choice([1, 5, 16, 40, 3 * size]), parent, shared)
        if step % 8 == 7:
            engine.leave(chance.choice(engine.live))
        engine.step(chance.choice([1, 7, 16, 17, 33, 200]))


def test_many_decode_steps_with_a_shared_prefix() -> None:
    engine = Engine(16, 4, 64, torch.float32, seed=1)
    first = engine.join(100)
    engine.step(1000)
    for own in (1, 2, 3, 30):
        engine.join(own, first, 6)
    for _ in range(40):
        engine.step(1000)


def test_tensors_that_do_not_fit_the_step_are_refused() -> None:
    blocks = Blocks(2, 64, 16, torch.float32)
    steps = Steps(blocks, 4)
    steps.plan(np.array([[0]]), np.array([3]), np.array([0, 1]))
    good = torch.zeros(1, 4, 64)
    for wrong in (torch.zeros(2, 4, 64), good.double()):
        with pytest.raises(ValueError, match=r"q is torch.float.* the step needs torch.float32 \(1, 4, 64\)"):
            steps.attend(wrong, good, 0, 1.0)
        with pytest.raises(ValueError, match="out is"):
            steps.attend(good, wrong, 0, 1.0)
