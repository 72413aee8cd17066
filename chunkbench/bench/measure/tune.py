"""Finds the best tuning of the Triton kernels for this machine's GPU: a row of the tuning table.

Several processes compile the candidates. Candidates that spill registers are dropped. The others are timed: first the
tiles of `partial_results`, then the merge with the best tiles.

A CUDA graph decodes copies of a workload in turn. The copies are larger than five times the L2 cache, so that all K and
V come from memory.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property, partial
from os import cpu_count
from statistics import geometric_mean, median
from typing import NamedTuple

import torch

from chunkbench.attention.tree import PrefixTree
from chunkbench.bench.measure.caches import last_level_cache_bytes
from chunkbench.bench.measure.gpu_loop import L2_FACTOR
from chunkbench.kernels.reference import attention
from chunkbench.kernels.triton.tuning import Tuning
from chunkbench.limits import no_locks

REPLAYS = 15
LARGEST_ERROR = 4e-3
CHUNK = 64
START = Tuning(
    wide=64, warps=4, tile=32, stages=5, narrow_tile=32, narrow_stages=5, blocks=1, narrow_blocks=1,
    merge_tile=16, merge_warps=2, fold=8,
)  # fmt: skip


class TuningCase(NamedTuple):
    """A workload: sequences that share a prefix, and the numbers of query heads and KV heads."""

    rows: int
    shared: int
    private: int
    heads: int
    kv_heads: int


WORKLOADS = (
    TuningCase(32, 0, 2048, 32, 32),
    TuningCase(32, 1024, 1025, 32, 32),
    TuningCase(32, 2048, 1, 32, 32),
    TuningCase(32, 1024, 1025, 32, 8),
    TuningCase(8, 0, 8192, 32, 8),
)


class Trial(NamedTuple):
    """A candidate and its time for each workload. A refused candidate has a `reason` and no times."""

    tuning: Tuning
    times_us: tuple[float, ...]
    reason: str = ""


def tiles() -> list[Tuning]:
    """Candidates for the tiles and the pipeline depths of `partial_results`. All depths are odd, because an even depth
    adds no buffer."""
    pairs = [(32, 5), (32, 7), (64, 3), (64, 5), (64, 7), (128, 3)]
    return [
        START._replace(tile=tile, stages=stages, narrow_tile=narrow_tile, narrow_stages=narrow_stages)
        for (tile, stages), (narrow_tile, narrow_stages) in itertools.product(pairs[:5], pairs)
    ]


def merges(base: Tuning) -> list[Tuning]:
    """Candidates for the merge, with the tiles of `base`."""
    grid = itertools.product((16, 32), (1, 2, 4), (4, 8, 16))
    return [base._replace(merge_tile=tile, merge_warps=warps, fold=fold) for tile, warps, fold in grid]


def best(trials: Iterable[Trial]) -> Tuning:
    """The candidate with the smallest geometric mean over the workloads. Raises RuntimeError if none was timed."""
    timed = [trial for trial in trials if trial.times_us]
    if not timed:
        raise RuntimeError("no candidate compiled without spills and gave the right result")
    return min(timed, key=lambda trial: geometric_mean(trial.times_us)).tuning


def search(
    fit: Callable[[Sequence[Tuning]], Iterable[Tuning | str]],
    measure: Callable[[Tuning], tuple[float, ...] | str],
    announce: Callable[[Trial], None],
) -> Tuning:
    """Find the best tiles, then the best merge for these tiles.

    `fit` returns each candidate with the fields `blocks` and `narrow_blocks` filled in. `measure` returns the
    candidate's times, one for each workload. Both return the reason as text if they refuse a candidate.
    """

    def trials(candidates: Sequence[Tuning]) -> Iterator[Trial]:
        for candidate, fitted in zip(candidates, fit(candidates), strict=True):
            times = fitted if isinstance(fitted, str) else measure(fitted)
            tuning = candidate if isinstance(fitted, str) else fitted
            trial = Trial(tuning, (), times) if isinstance(times, str) else Trial(tuning, times)
            announce(trial)
            yield trial

    best_tiles = best(trials(tiles()))
    return best(trials(merges(best_tiles)))


def fit_all(generation: int, head_dim: int, candidates: Sequence[Tuning]) -> list[Tuning | str]:
    """Call `fit` for each candidate and compile the kernels that `Stopwatch` will launch.

    Each core runs one process. All processes end before anything is timed.
    """
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
    try:
        pool = ProcessPoolExecutor(min(len(candidates), cpu_count() or 1), context)
    except OSError as error:
        raise RuntimeError(no_locks(error)) from None
    with pool as processes:
        return list(processes.map(partial(_prepared, generation, head_dim), candidates))


def _prepared(generation: int, head_dim: int, candidate: Tuning) -> Tuning | str:
    fitted = fit(generation, head_dim, candidate)
    if isinstance(fitted, str):
        return fitted
    from triton.runtime.errors import OutOfResources

    for workload in WORKLOADS:  # few tokens, but enough that a shared prefix is a work item
        small = workload._replace(shared=min(workload.shared, 256), private=min(workload.private, CHUNK + 1))
        try:
            Session(small, head_dim, copies=1).decode(fitted)
        except OutOfResources as error:
            return str(error)
    torch.cuda.synchronize()
    return fitted


def fit(generation: int, head_dim: int, candidate: Tuning) -> Tuning | str:
    """Add to a candidate the number of blocks that fit a multiprocessor. Returns the reason as text if it is
    refused."""
    from chunkbench.kernels.triton.compile import build
    from chunkbench.kernels.triton.constants import Sizes

    binaries = build(generation, Sizes(32, 32, head_dim, CHUNK, torch.float16), candidate)
    spilled = [binary.kernel for binary in binaries if binary.stack_bytes]
    wide, narrow = (binary.blocks(generation) for binary in binaries[:2])
    if spilled or not wide:
        return f"{', '.join(spilled)} spills registers" if spilled else "does not fit a multiprocessor"
    return candidate._replace(blocks=wide, narrow_blocks=narrow)


class Session:
    """Copies of a workload's K and V on the current GPU, its queries, and an output for each copy."""

    def __init__(self, workload: TuningCase, head_dim: int, copies: int) -> None:
        from chunkbench.kernels.triton.store import TritonStore

        rows, shared, private, heads, kv_heads = workload
        self._heads = heads
        self._tree = PrefixTree(CHUNK)
        joins = [
            self._tree.join([*range(shared), *range((row + 1) << 20, ((row + 1) << 20) + private)])
            for row in range(rows)
        ]
        # All sequences hold the same K and V, so all rows and copies have one expected result.
        self._k, self._v = torch.randn((2, shared + private, kv_heads, head_dim), device="cuda").half()
        self._q = torch.randn((rows, heads, head_dim), device="cuda").half()
        self.outs = [torch.empty_like(self._q) for _ in range(copies)]
        self._stores = list[TritonStore]()
        for _ in range(copies):
            store = TritonStore(CHUNK, kv_heads, head_dim, torch.float16, "cuda")
            store.grow(self._tree.pool.in_use)
            for join in joins:
                store.fill(join.chunks, self._k[join.cached :], self._v[join.cached :])
            self._stores.append(store)

    def decode(self, tuning: Tuning) -> Callable[[], None]:
        """Make a function that decodes every copy with a candidate, as one CUDA graph."""
        from chunkbench.kernels.triton.decode import TppTriton

        kernels = [TppTriton(store, self._heads, tuning=tuning) for store in self._stores]
        for kernel, out in zip(kernels, self.outs, strict=True):
            kernel.plan(self._tree.plan())
            kernel.decode(self._q, out.fill_(float("nan")))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for kernel, out in zip(kernels, self.outs, strict=True):
                kernel.decode(self._q, out)

        def again() -> None:
            graph.replay()
            assert kernels  # a graph reads its kernels' memory, so the kernels must live as long

        return again

    @cached_property
    def _expected(self) -> torch.Tensor:
        return torch.stack([attention(query, self._k, self._v) for query in self._q])

    def max_error(self) -> float:
        """Largest error of the outputs, divided by the largest expected value."""
        peak = self._expected.abs().max()
        return max(((out.double() - self._expected).abs().max() / peak).item() for out in self.outs)


class Stopwatch:
    """Times candidates on the current GPU for one head dimension."""

    def __init__(self, head_dim: int) -> None:
        self._sessions = list[Session]()
        l2 = last_level_cache_bytes("cuda")
        for workload in WORKLOADS:
            size = 4 * (workload.shared + workload.rows * workload.private) * workload.kv_heads * head_dim
            self._sessions.append(Session(workload, head_dim, max(1, -(-L2_FACTOR * l2 // size))))

    def measure(self, tuning: Tuning) -> tuple[float, ...] | str:
        """Microseconds of each workload, or the reason why the candidate is refused."""
        times = []
        for workload, session in zip(WORKLOADS, self._sessions, strict=True):
            again = session.decode(tuning)
            samples = []
            for _ in range(REPLAYS):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                again()
                end.record()
                end.synchronize()
                samples.append(1000 * start.elapsed_time(end) / len(session.outs))
            worst = session.max_error()
            if not worst <= LARGEST_ERROR:  # also true for NaN
                return f"wrong: max_error {worst:.1e} at {workload}"
            times.append(float(median(samples[1:])))
        return tuple(times)
