"""Running results of the native kernels over several blocks, against float64, for every instruction set of this CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chunkbench.bench.measure.profiler import thread_count
from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import NativeDecode
from chunkbench.kernels.cpu.planner import Grain, arrays, cut
from chunkbench.kernels.cpu.store import BorrowedStore
from chunkbench.kernels.items import Items, items_of_lengths
from chunkbench.kernels.reference import attention
from tests.kernels.pieces import instruction_set
from tests.pairs import pairs

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

ISAS = cpu.required().isas()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HEADS = [(1, 1), (4, 2), (6, 1), (3, 3)]
# Outputs are float32: what is left is the rounding of weights, in pairs of bfloat16 on CPUs that multiply these.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
NOTHING_YET = (-math.inf, 0.0)
"""Largest score and sum of weights of a row that has read nothing."""


class Case:
    """Queries, and blocks of K and V of which each row reads the first tokens; results of every instruction set."""

    def __init__(
        self,
        heads: tuple[int, int],
        dim: int,
        chunk: int,
        dtype: torch.dtype,
        blocks: Sequence[tuple[int, Sequence[int]]],
        scale: float = 1.0,
    ) -> None:
        """`blocks`: the tokens of each, and how many of them each row reads. `scale`: of queries and keys."""
        self.dtype, (self.heads, self.kv_heads), self.dim, self.chunk = dtype, heads, dim, chunk
        random = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random)

        self.rows = len(blocks[0][1])
        self.q = (scale * normal(self.rows, self.heads, dim)).to(dtype)
        self.blocks = [
            ((scale * normal(n, self.kv_heads, dim)).to(dtype), normal(n, self.kv_heads, dim).to(dtype), np.array(seen))
            for n, seen in blocks
        ]
        self.stores = [self._packed(k, v) for k, v, _ in self.blocks]

    def _packed(self, k: torch.Tensor, v: torch.Tensor) -> BorrowedStore:
        chunks = -(-len(k) // self.chunk)
        # The kernels read nothing behind the tokens of a chunk: what stands there would show.
        buffer = torch.full((2 * chunks * self.chunk * self.kv_heads * self.dim,), torch.nan, dtype=self.dtype)
        store = BorrowedStore(buffer, self.chunk, self.kv_heads, self.dim)
        store.grow(chunks)
        store.fill(np.arange(chunks), k, v)
        return store

    def start(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Results of rows that have read nothing."""
        return torch.zeros(self.rows, self.heads, self.dim), torch.tensor(NOTHING_YET).repeat(self.rows, self.heads, 1)

    def _items(self, place: int) -> tuple[Items, np.ndarray]:
        k, _, seen = self.blocks[place]
        return items_of_lengths(np.arange(-(-len(k) // self.chunk)), len(k), seen, self.chunk)

    def add(self, isa: str, place: int, outputs: torch.Tensor, stats: torch.Tensor) -> NativeDecode:
        """Add a block to running results."""
        with instruction_set(isa):
            kernel = NativeDecode(self.stores[place], self.heads)
        items, last_tokens = self._items(place)
        kernel.make(items, len(last_tokens))
        kernel.set_last_tokens(last_tokens)
        kernel.accumulate(self.q, outputs, stats)
        return kernel

    def partial_items(self) -> int:
        """Items of the first block that write partial results, which others fold in."""
        items, last_tokens = self._items(0)
        grain = Grain(torch.get_num_threads(), self.kv_heads, self.heads // self.kv_heads)
        return arrays(*cut(items, grain), len(last_tokens)).partial_items

    def expected(self) -> list[tuple[torch.Tensor, torch.Tensor] | None]:
        """Attention `[h, d]` of each row, and the logarithm of its sum of weights `[h]`; None if it sees nothing."""
        found: list[tuple[torch.Tensor, torch.Tensor] | None] = []
        for row in range(self.rows):
            visible = [(k[: seen[row]], v[: seen[row]]) for k, v, seen in self.blocks]
            k, v = (torch.cat(parts) for parts in zip(*visible, strict=True))
            keys = k.double().repeat_interleave(self.heads // self.kv_heads, 1)
            scores = torch.einsum("hd,nhd->hn", self.q[row].double(), keys) * self.dim**-0.5
            found.append((attention(self.q[row], k, v), scores.logsumexp(-1)) if len(k) else None)
        return found

    def check(self) -> None:
        """All rows of every instruction set against float64."""
        expected, allowed = self.expected(), TOLERANCE[self.dtype]
        for isa in ISAS:
            outputs, stats = self.start()
            for place in range(len(self.blocks)):
                self.add(isa, place, outputs, stats)
            for row, of_row in enumerate(expected):
                if of_row is None:
                    assert torch.equal(outputs[row], torch.zeros_like(outputs[row])), (isa, row)
                    assert torch.equal(stats[row], torch.tensor(NOTHING_YET).repeat(self.heads, 1)), (isa, row)
                    continue
                out, log_sums = of_row
                peaks, sums = stats[row].double().unbind(-1)
                worst = (outputs[row].double() / sums[:, None] - out).abs().max()
                assert float(worst) <= allowed * float(out.abs().max()), (isa, row)
                worst = (peaks * self.dim**-0.5 + sums.log() - log_sums).abs().max()
                assert float(worst) <= allowed * max(1.0, float(log_sums.abs().max())), (isa, row)


@pytest.mark.parametrize(
    ("dtype", "heads", "shape"), pairs(DTYPES, HEADS, [(32, 16), (48, 64), (128, 32), (256, 16)]), ids=str
)
def test_rows_over_three_blocks(dtype: torch.dtype, heads: tuple[int, int], shape: tuple[int, int]) -> None:
    """Blocks that fill neither a chunk nor sixteen tokens; a row that sees nothing, and rows that see everything."""
    blocks = [
        (75, [0, 0, 0, 1, 15, 16, 17, 75, 75]),
        (1, [0, 0, 0, 0, 0, 0, 1, 1, 1]),
        (130, [0, 1, 2, 3, 64, 64, 65, 129, 130]),
    ]
    Case(heads, *shape, dtype, blocks).check()


@st.composite
def some_blocks(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Up to three blocks; what rows see of each never decreases."""
    rows = draw(st.integers(1, 40))
    blocks = []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(st.integers(1, 150))
        kinds = st.sampled_from(["any", "one more each", "all"])
        match draw(kinds):
            case "any":
                seen = sorted(draw(st.lists(st.integers(0, tokens), min_size=rows, max_size=rows)))
            case "one more each":
                first = draw(st.integers(-rows, tokens))
                seen = [min(max(0, first + row), tokens) for row in range(rows)]
            case _:
                seen = [tokens] * rows
        blocks.append((tokens, seen))
    return blocks


@settings(max_examples=30)
@given(
    blocks=some_blocks(),
    heads=st.sampled_from([*HEADS, (32, 1), (64, 1)]),
    chunk=st.sampled_from([16, 48, 64]),
    dtype=st.sampled_from(DTYPES),
    count=st.sampled_from([1, 1, 1, 2, 3]),
)
# One row that reads a part of a chunk is an item by itself; so is each row where 64 heads share K and V.
@example(blocks=[(2, [0, 1])], heads=(1, 1), chunk=64, dtype=torch.float32, count=1)
@example(blocks=[(66, [64, 65])], heads=(4, 2), chunk=64, dtype=torch.bfloat16, count=1)
@example(blocks=[(5, [1, 2, 3])], heads=(64, 1), chunk=64, dtype=torch.float16, count=2)
def test_any_lengths_that_never_decrease(
    blocks: list[tuple[int, list[int]]], heads: tuple[int, int], chunk: int, dtype: torch.dtype, count: int
) -> None:
    with thread_count(count):
        Case(heads, 32, chunk, dtype, blocks).check()


@pytest.mark.parametrize(
    ("dtype", "heads", "rows"), pairs(DTYPES, [(1, 1), (4, 2), (6, 1)], ["one", "many", "a last chunk each"]), ids=str
)
def test_long_blocks_whose_items_are_cut(dtype: torch.dtype, heads: tuple[int, int], rows: str) -> None:
    """The parts of an item write partial results, and what folds them in starts from the running results of its row."""
    tokens = 16 * 40 + 7
    seen = {"one": [tokens], "many": [tokens] * 8, "a last chunk each": [0, 8 * 16 + 1, 20 * 16, tokens - 1, tokens]}
    with thread_count(2):
        case = Case(heads, 32, 16, dtype, [(tokens, seen[rows]), (33, [33] * len(seen[rows]))])
        assert case.partial_items() > 0
        case.check()
        case.blocks.reverse()  # so that the long one is added to results that are there
        case.stores.reverse()
        case.check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_of_blocks_that_are_far_apart(dtype: torch.dtype) -> None:
    """The weights of one block vanish beside those of another one, whichever comes first."""
    blocks = [(50, [50] * 3), (50, [50] * 3)]
    for small in (0, 1):
        case = Case((2, 2), 32, 16, dtype, blocks, scale=12.0)
        case.blocks[small][0].mul_(0.01)
        case.stores = [case._packed(k, v) for k, v, _ in case.blocks]
        case.check()


def test_the_kernels_refuse_results_that_are_not_contiguous() -> None:
    case = Case((2, 2), 32, 16, torch.float32, [(5, [5, 5])])
    outputs, stats = case.start()
    with pytest.raises(AssertionError):
        case.add(ISAS[0], 0, outputs.transpose(0, 1).contiguous().transpose(0, 1), stats)
