"""Steps over blocks as vLLM hands them out: their plans, and attention by the CPU's and the GPU's kernels."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.kernels import cpu
from chunkbench.kernels.plan import Plan
from chunkbench.plugins.vllm.forest import BlockForest
from chunkbench.plugins.vllm.steps import Blocks, Steps
from tests.attention.contexts import causal_attention
from tests.kernels.pieces import planned, prompts
from tests.kernels.triton.interpreter import mend_interpreter
from tests.pairs import values

if TYPE_CHECKING:
    from chunkbench.plugins.vllm.gpu_steps import DecodeSteps

SIZE = 16


def check(plan: Plan, tables: list[list[int]], lengths: list[int]) -> None:
    """Every row reads exactly its blocks in order; rows that share full blocks read them in common segments."""
    rows = len(tables)
    assert sorted(plan.order.tolist()) == list(range(rows))
    read: dict[int, list[int]] = defaultdict(list)
    for segment in plan.segments:
        for position in range(segment.begin, segment.end):
            read[int(plan.order[position])] += segment.chunks.tolist()
        if segment.end - segment.begin > 1:
            for row in plan.order[segment.begin : segment.end]:
                shared = len(read[int(row)])
                assert shared * SIZE <= lengths[int(row)], "only full blocks are shared"
    assert [read[row] for row in range(rows)] == tables
    assert plan.last_chunks.tolist() == [table[-1] for table in tables]
    assert plan.last_tokens.tolist() == [(length - 1) % SIZE + 1 for length in lengths]
    # No block that two rows have in common stands in two segments, unless it is the last, partial one.
    places = [int(chunk) for segment in plan.segments for chunk in segment.chunks]
    partial = {table[-1] for table, length in zip(tables, lengths, strict=True) if length % SIZE}
    twice = {chunk for chunk in places if places.count(chunk) > 1}
    assert twice <= partial


def padded(tables: list[list[int]]) -> np.ndarray:
    width = max(map(len, tables)) + 2
    return np.array([table + [7] * (width - len(table)) for table in tables], np.int32)


@given(prompts(), st.lists(st.integers(1, 2 * SIZE), max_size=40))
@settings(max_examples=150, deadline=None)
def test_a_plan_reads_what_the_tables_say_and_grows_with_them(drawn: list[list[int]], steps: list[int]) -> None:
    # They share blocks as a prefix tree does.
    tables, lengths = planned(drawn, SIZE)[1], [len(tokens) for tokens in drawn]
    planner, free = BlockForest(SIZE), 1000
    check(planner.plan(padded(tables), np.array(lengths)), tables, lengths)
    for step, grown in enumerate(steps):
        for row in range(len(tables)):
            lengths[row] += grown if row == step % len(tables) else 1
            while len(tables[row]) * SIZE < lengths[row]:
                tables[row].append(free)
                free += 1
        check(planner.plan(padded(tables), np.array(lengths)), tables, lengths)


def test_a_plan_stays_while_no_block_begins_and_a_new_block_changes_little() -> None:
    planner = BlockForest(SIZE)
    tables = [[0, 1, 2], [0, 1, 3], [0, 4]]
    first = planner.plan(padded(tables), np.array([47, 40, 19]))
    assert planner.plan(padded(tables), np.array([48, 41, 20])) is first
    check(first, tables, [48, 41, 20])
    tables[0].append(5)
    second = planner.plan(padded(tables), np.array([49, 42, 21]))
    growth = second.growth_since(first)
    assert growth is not None
    assert [array.tolist() for array in growth] == [[0], [5]]
    check(second, tables, [49, 42, 21])


def test_a_longer_shared_prefix_is_no_growth() -> None:
    planner = BlockForest(SIZE)
    first = planner.plan(padded([[0, 1, 2], [0, 1, 3]]), np.array([40, 41]))
    second = planner.plan(padded([[0, 1, 9, 2], [0, 1, 9, 3]]), np.array([56, 57]))
    assert second.growth_since(first) is None


@pytest.mark.parametrize(
    ("tables", "lengths"),
    [
        ([[0, 1, 3], [0, 4]], [41, 20]),  # the first sequence left
        ([[0, 1, 2], [0, 1, 3], [0, 4], [0, 1, 9]], [40, 41, 20, 48]),  # one joined
        ([[0, 1, 2], [0, 1, 3], [8, 9]], [40, 41, 20]),  # other blocks
        ([[0, 1], [0, 1, 3], [0, 4]], [32, 41, 20]),  # a shorter one
        ([[0, 1], [0, 1]], [20, 20]),  # two with the same partial block, which each reads
    ],
)
def test_other_changes_are_found_anew(tables: list[list[int]], lengths: list[int]) -> None:
    planner = BlockForest(SIZE)
    planner.plan(padded([[0, 1, 2], [0, 1, 3], [0, 4]]), np.array([40, 41, 20]))
    check(planner.plan(padded(tables), np.array(lengths)), tables, lengths)


def test_ids_keep_64_bits_while_tables_grow() -> None:
    """vLLM's tables have 32 bits. An id times the bytes of a block, 2^19 for Llama2-7B, needs more."""
    forest = BlockForest(16)
    first = forest.plan(np.array([[5000, 6000], [5000, 7000]], np.int32), np.array([32, 32]))
    grown = forest.plan(np.array([[5000, 6000, 8000], [5000, 7000, 9000]], np.int32), np.array([33, 33]))
    growth = grown.growth_since(first)
    assert growth is not None
    for ids in (first.chunks, grown.chunks, growth[1], grown.last_chunks):
        assert ids.dtype == np.int64
    assert sorted((growth[1] * 2**19).tolist()) == [8000 * 2**19, 9000 * 2**19]


HEADS, LAYERS = 4, 2
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
native = pytest.mark.skipif(cpu.native() is None, reason="needs the native module")
triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


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

    def __init__(
        self, size: int, kv_heads: int, dim: int, dtype: torch.dtype, seed: int, scales: torch.Tensor | None = None
    ) -> None:
        """`scales`: of fp8 `[2, kv_heads]`; None: K and V are stored in `dtype`."""
        self.size, self.kv_heads, self.dim, self.dtype, self.scales = size, kv_heads, dim, dtype, scales
        self.blocks = Blocks(kv_heads, dim, size, dtype, "same" if scales is None else "fp8")
        self.steps = Steps(self.blocks, HEADS)
        self.address = 0 if scales is None else scales.data_ptr()
        stored = dtype if scales is None else torch.float8_e4m3fn
        self.caches = [torch.full((400, kv_heads, size, 2 * dim), torch.nan).to(stored) for _ in range(LAYERS)]
        self.free = list(range(400))
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
        """Decode all that have their prompts, some with a draft, and compute `budget` tokens of prompts beside them.
        Some tokens of a draft are rejected after the step."""
        parts, drafts = [], []
        for sequence in self.live:
            if sequence.computed == sequence.length:
                count = self.chance.choice([1, 1, 3, 20])
                sequence.length += count
                drafts.append((sequence, count))
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
            self.steps.write(cache.data_ptr(), torch.cat([k, padding]), torch.cat([v, padding]), slots, self.address)
            q = self.random(int(starts[-1]), HEADS)
            out = torch.empty_like(q)
            self.steps.attend(q, out, cache.data_ptr(), 0.2, self.address)
            for row, (sequence, _) in enumerate(parts):
                span = slice(int(starts[row]), int(starts[row + 1]))
                expected = causal_attention(q[span], *self.kept(sequence.kv[layer]), 0.2)
                torch.testing.assert_close(out[span].double(), expected, rtol=0, atol=TOLERANCE[self.dtype])
        for sequence, count in drafts:
            sequence.length -= self.chance.randrange(count)
            sequence.computed = sequence.length
            sequence.kv = [kv[:, : sequence.length] for kv in sequence.kv]
            while (len(sequence.table) - 1) * self.size >= sequence.length:
                self.free.append(sequence.table.pop())

    def kept(self, kv: torch.Tensor) -> torch.Tensor:
        if self.scales is None:
            return kv
        scales = self.scales[:, None, :, None]
        return (kv.float() / scales).clamp(-448, 448).to(torch.float8_e4m3fn).double() * scales

    def slots(self, sequence: Live, count: int) -> np.ndarray:
        positions = np.arange(sequence.computed - count, sequence.computed)
        return np.array(sequence.table)[positions // self.size] * self.size + positions % self.size

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, self.dim, generator=self.numbers).to(self.dtype)


@native
@pytest.mark.parametrize(
    ("shape", "dtype"),
    values([(16, 4, 64), (64, 2, 128), (32, 1, 80)], [torch.float32, torch.bfloat16, torch.float16]),
    ids=str,
)
def test_steps_of_a_busy_engine(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    keep_busy(Engine(*shape, dtype, seed=shape[0]))


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_with_k_and_v_in_fp8(dtype: torch.dtype) -> None:
    scales = torch.tensor([[1.0, 0.5, 0.02, 3.0], [0.25, 1.0, 0.1, 0.01]])
    keep_busy(Engine(16, 4, 64, dtype, seed=5, scales=scales))


def keep_busy(engine: Engine) -> None:
    size, chance = engine.size, engine.chance
    for step in range(40):
        if step % 3 == 0 and len(engine.live) < 8:
            ready = [s for s in engine.live if s.computed >= size]
            parent = chance.choice(ready) if ready and chance.random() < 0.7 else None
            shared = chance.randrange(1, parent.computed // size + 1) if parent else 0
            engine.join(chance.choice([1, 5, 16, 40, 3 * size]), parent, shared)
        if step % 8 == 7:
            engine.leave(chance.choice(engine.live))
        engine.step(chance.choice([1, 7, 16, 17, 33, 200]))


@native
def test_many_decode_steps_with_a_shared_prefix() -> None:
    engine = Engine(16, 4, 64, torch.float32, seed=1)
    first = engine.join(100)
    engine.step(1000)
    for own in (1, 2, 3, 30):
        engine.join(own, first, 6)
    for _ in range(40):
        engine.step(1000)


@native
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


BLOCKS, SCALE = 96, 0.17


@pytest.fixture(scope="module")
def device() -> str:
    """Where the GPU kernels run: in Triton's interpreter where there is no GPU."""
    if torch.cuda.is_available():
        return "cuda"
    mend_interpreter()
    return "cpu"


def small_steps(cache: torch.Tensor, rows: int, drafted: bool = False) -> DecodeSteps:
    from chunkbench.kernels.triton.tuning import Tuning
    from chunkbench.plugins.vllm.gpu_steps import DecodeSteps

    tuning = Tuning(
        wide=64, warps=4, tile=32, stages=3, narrow_tile=32, narrow_stages=3, blocks=1, narrow_blocks=1,
        merge_tile=16, merge_warps=4, fold=2,
    )  # fmt: skip
    return DecodeSteps(cache, HEADS, rows=rows, blocks=BLOCKS, tuning=tuning, drafted=drafted)


def caches(
    device: str, kv_heads: int, size: int, dim: int, dtype: torch.dtype, tokens_first: bool
) -> list[torch.Tensor]:
    """K/V caches `[blocks, kv_heads, tokens, 2 * dim]` as vLLM allocates them: heads or tokens outermost in a block."""
    numbers = torch.Generator().manual_seed(size)
    shape = (BLOCKS, size, kv_heads, 2 * dim) if tokens_first else (BLOCKS, kv_heads, size, 2 * dim)
    made = [torch.randn(*shape, generator=numbers).to(device, dtype) for _ in range(LAYERS)]
    return [cache.transpose(1, 2) if tokens_first else cache for cache in made]


@triton
@pytest.mark.parametrize(
    ("shape", "tokens_first", "drafted"),
    [
        ((4, 16, 64, torch.float16), False, False),
        ((2, 32, 64, torch.bfloat16), True, True),
        ((1, 64, 128, torch.float16), False, False),
        ((4, 16, 64, torch.float16), False, True),
    ],
    ids=str,
)
def test_sequences_that_share_join_grow_and_leave(
    device: str, shape: tuple[int, int, int, torch.dtype], tokens_first: bool, drafted: bool
) -> None:
    kv_heads, size, dim, dtype = shape
    layers = caches(device, kv_heads, size, dim, dtype, tokens_first)
    steps = small_steps(layers[0], 24 if drafted else 6, drafted)
    generation = steps.generation
    chance, numbers = random.Random(size), torch.Generator().manual_seed(1)
    free = list(range(BLOCKS))
    chance.shuffle(free)
    live: list[tuple[list[int], int]] = []  # table and length
    for step in range(7):  # the last one has a sequence that joined after another one left
        live = [(table, length + (chance.randrange(4) if drafted else 1)) for table, length in live]
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
        counts = [min(length, chance.choice([1, 1, 2, 4])) if drafted else 1 for _, length in live]
        starts = [sum(counts[:row]) for row in range(len(counts))]
        lengths = np.array([length for _, length in live])
        steps.plan(tables, lengths, np.array(counts) if drafted else None)
        for cache in layers:
            # A captured graph has more rows than the step.
            q = torch.randn(sum(counts) + 2, HEADS, dim, generator=numbers).to(device, dtype)
            out = torch.full_like(q, 7.0)
            steps.attend(q, out, cache, SCALE)
            for (table, length), first, count in zip(live, starts, counts, strict=True):
                held, rows = (
                    cache[table].transpose(1, 2).reshape(-1, kv_heads, 2 * dim)[:length],
                    slice(first, first + count),
                )
                expected = causal_attention(q[rows], *held.chunk(2, -1), SCALE)
                torch.testing.assert_close(out[rows].double(), expected, rtol=0, atol=TOLERANCE[dtype])
            assert (out[sum(counts) :] == 7.0).all()
    assert steps.generation == generation  # no captured graph became invalid


@triton
def test_a_step_without_decoding_rows(device: str) -> None:
    (cache, _) = caches(device, 4, 16, 64, torch.float16, False)
    steps = small_steps(cache, rows=4)
    steps.plan(np.empty((0, 3), np.int32), np.empty(0, np.int64))
    q = torch.ones(2, HEADS, 64, dtype=torch.float16, device=device)
    out = torch.full_like(q, 7.0)
    steps.attend(q, out, cache, SCALE)
    assert (out == 7.0).all()


@triton
def test_blocks_that_the_kernels_cannot_address_are_refused() -> None:
    from chunkbench.plugins.vllm.gpu_steps import BlockPlaces

    odd = torch.zeros(3 * 1001, dtype=torch.float16).as_strided((3, 1, 4, 128), (1001, 512, 128, 1))
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        BlockPlaces(odd)
