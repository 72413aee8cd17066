"""Finds the Triton kernels' row of the tuning table for this machine's GPU.

It compiles the candidates, drops those that spill registers, and times the others: first the tiles of
`partial_results`, then the merge with the best tiles. It times a CUDA graph that decodes copies of a workload in turn.
The copies together are larger than five times the L2 cache, so that all K and V come from memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import geometric_mean, median
from typing import NamedTuple

import torch

from chunkbench.kernels.reference import attention
from chunkbench.kernels.triton.tuning import Tuning
from chunkbench.kvcache import PrefixTree
from chunkbench.measure.caches import last_level_cache_bytes
from chunkbench.measure.rotation import L2_FACTOR

REPLAYS = 15
LARGEST_ERROR = 4e-3
CHUNK = 64
START = Tuning(
    tile=32, wide=64, warps=4, stages=5, blocks=1, narrow_blocks=1, merge_tile=32, merge_warps=4, fold=2, in_place=False
)  # fmt: skip


class TuningCase(NamedTuple):
    """Sequences with a common prefix; `heads` query heads over `kv_heads`."""

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
    """A candidate and its microseconds for each workload; no times if it was refused for `reason`."""

    tuning: Tuning
    times_us: tuple[float, ...]
    reason: str = ""


def tiles() -> list[Tuning]:
    """Candidates for the tiles of `partial_results`. An even pipeline depth gives no more buffers than an odd one."""
    grid = itertools.product((16, 32, 64, 128), (4, 8), (3, 5, 7))
    return [START._replace(tile=tile, warps=warps, stages=stages) for tile, warps, stages in grid]


def merges(base: Tuning) -> list[Tuning]:
    """Candidates for the merge, with the tiles of `base`."""
    grid = itertools.product((16, 32, 64), (4, 8), (2, 4))
    separate = [base._replace(merge_tile=tile, merge_warps=warps, fold=fold) for tile, warps, fold in grid]
    return [*separate, base._replace(in_place=True)]


def best(trials: Iterable[Trial]) -> Tuning:
    """The candidate with the smallest geometric mean over the workloads. Raises RuntimeError if none was timed."""
    timed = [trial for trial in trials if trial.times_us]
    if not timed:
        raise RuntimeError("no candidate compiled without spills and gave the right result")
    return min(timed, key=lambda trial: geometric_mean(trial.times_us)).tuning


def search(
    fit: Callable[[Tuning], Tuning | str],
    measure: Callable[[Tuning], tuple[float, ...] | str],
    announce: Callable[[Trial], None],
) -> Tuning:
    """Try tiles, then merges.

    `fit` returns the candidate with its `blocks`, `measure` its times; both return the reason if they refuse it.
    """

    def trials(candidates: Sequence[Tuning]) -> Iterator[Trial]:
        for candidate in candidates:
            fitted = fit(candidate)
            times = fitted if isinstance(fitted, str) else measure(fitted)
            tuning = candidate if isinstance(fitted, str) else fitted
            trial = Trial(tuning, (), times) if isinstance(times, str) else Trial(tuning, times)
            announce(trial)
            yield trial

    best_tiles = best(trials(tiles()))
    return best(trials(merges(best_tiles)))


def fit(generation: int, head_dim: int, candidate: Tuning) -> Tuning | str:
    """The candidate with the number of blocks that fit a multiprocessor, or the reason why it is refused."""
    from chunkbench.kernels.triton.compile import build

    binaries = build(generation, "fp16", 32, 32, head_dim, CHUNK, candidate)
    spilled = [binary.kernel for binary in binaries if binary.stack_bytes]
    wide, narrow = (binary.blocks(generation) for binary in binaries[:2])
    if spilled or not wide:
        return f"{', '.join(spilled)} spills registers" if spilled else "does not fit a multiprocessor"
    return candidate._replace(blocks=wide, narrow_blocks=narrow)


class Stopwatch:
    """Times candidates on the current GPU for one head dimension."""

    def __init__(self, head_dim: int) -> None:
        self._head_dim = head_dim
        self._l2 = last_level_cache_bytes("cuda")

    def measure(self, tuning: Tuning) -> tuple[float, ...] | str:
        """Microseconds of each workload, or the reason why the candidate is refused."""
        times = []
        for workload in WORKLOADS:
            time = self._time(workload, tuning)
            if isinstance(time, str):
                return time
            times.append(time)
        return tuple(times)

    def _time(self, workload: TuningCase, tuning: Tuning) -> float | str:
        from chunkbench.kernels.triton.decode import TppTriton
        from chunkbench.kernels.triton.store import TritonStore

        rows, shared, private, heads, kv_heads = workload
        size = 4 * (shared + rows * private) * kv_heads * self._head_dim
        copies = max(1, -(-L2_FACTOR * self._l2 // size))
        tree = PrefixTree(CHUNK)
        joins = [
            tree.join([*range(shared), *range((row + 1) << 20, ((row + 1) << 20) + private)]) for row in range(rows)
        ]
        kernels = []
        k, v = torch.randn((2, shared + private, kv_heads, self._head_dim), device="cuda").half()
        for _ in range(copies):
            store = TritonStore(CHUNK, kv_heads, self._head_dim, torch.float16, "cuda")
            store.grow(tree.pool.in_use)
            for join in joins:
                store.fill(join.chunks, k[join.cached :], v[join.cached :])
            kernel = TppTriton(store, heads, tuning=tuning)
            kernel.plan(tree.plan())
            kernels.append(kernel)
        q = torch.randn((rows, heads, self._head_dim), device="cuda").half()
        out = torch.empty_like(q)
        kernels[0].decode(q, out)  # compiles
        outs = [torch.full_like(out, float("nan")) for _ in kernels]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for kernel, target in zip(kernels, outs, strict=True):
                kernel.decode(q, target)
        times = []
        for _ in range(REPLAYS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * start.elapsed_time(end) / copies)
        # All sequences hold the same K and V, so all copies must give the same output, also after all replays.
        expected = torch.stack([attention(query, k, v) for query in q])
        worst = max(((result.double() - expected).abs().max() / expected.abs().max()).item() for result in outs)
        if not worst <= LARGEST_ERROR:  # also true for NaN
            return f"wrong: max_error {worst:.1e} at {workload}"
        return float(median(times[1:]))
