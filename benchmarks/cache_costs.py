"""What one change of the cache costs while other sequences live beside it.

    python benchmarks/cache_costs.py

Prints microseconds: the median of many changes, and in brackets the 10th and 90th percentile. Sequences of 1,024 tokens
share their first half. Columns are numbers of live sequences. A change that costs only what its own sequences cost
shows the same figure in every column; the plan, which all sequences share, grows with their number.

The first table is the tree alone. The second adds K and V of one layer (8 heads of 128, bfloat16 where the CPU has
its instructions, else float32), as the class `ChunkAttention` writes them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from time import perf_counter

import torch

from chunkbench import ChunkAttention
from chunkbench.kvcache import PrefixTree

LIVE = (8, 32, 128, 512)
CHUNK, KV_HEADS, HEAD_DIM = 64, 8, 128
SHARED, PROMPT, TAKEN = 512, 1024, 4
REPEATS = 300

Change = Callable[[], object]


def prompt(of: int) -> list[int]:
    """Token ids of one prompt: the shared half, then tokens of its own."""
    return [*range(SHARED), *range((of + 1) << 20, ((of + 1) << 20) + PROMPT - SHARED)]


def tree_changes(live: int) -> Iterator[tuple[str, Change]]:
    """The changes of a tree that holds so many sequences."""
    tree = PrefixTree(CHUNK)
    ids = [tree.join(prompt(of)).sequence for of in range(live)]
    some, last = ids[:: live // TAKEN][:TAKEN], prompt(live)

    def come_and_go() -> None:
        tree.leave(tree.join(last).sequence)

    yield f"append 1 token to {TAKEN} sequences", lambda: tree.append([7] * TAKEN, some)
    yield "append 32 tokens to 1 sequence", lambda: tree.append([7] * 32, some[:1], [32])
    yield "join and leave", come_and_go
    yield "append 1 token to every sequence", lambda: tree.append([7] * live)
    yield "join, leave, and a new plan", lambda: (come_and_go(), tree.plan())


def cache_changes(live: int) -> Iterator[tuple[str, Change]]:
    """The same with K and V."""
    bf16 = "avx512_bf16" in open("/proc/cpuinfo").read()
    dtype = torch.bfloat16 if bf16 else torch.float32
    cache = ChunkAttention(KV_HEADS, HEAD_DIM, chunk_size=CHUNK, dtype=dtype)
    k = torch.randn(PROMPT, KV_HEADS, HEAD_DIM).to(dtype)
    ids = []
    for of in range(live):
        held = cache.cached_tokens(prompt(of))
        ids.append(cache.add_sequence(prompt(of), k[held:], k[held:]))
    some, last = ids[:: live // TAKEN][:TAKEN], prompt(live)

    def come_and_go() -> None:
        held = cache.cached_tokens(last)
        cache.remove_sequence(cache.add_sequence(last, k[held:], k[held:]))

    yield (
        f"append 1 token to {TAKEN} sequences",
        lambda: cache.append([7] * TAKEN, k[:TAKEN], k[:TAKEN], some),
    )
    yield "append 32 tokens to 1 sequence", lambda: cache.append([7] * 32, k[:32], k[:32], some[:1], [32])
    yield "join and leave", come_and_go
    yield "append 1 token to every sequence", lambda: cache.append([7] * live, k[:live], k[:live])
    yield "join, leave, and a new plan", lambda: (come_and_go(), cache.plan())


def table(title: str, changes: Callable[[int], Iterator[tuple[str, Change]]]) -> None:
    """Print one row for each change."""
    print(f"\n{title}\n{'us, with live sequences':36}" + "".join(f"{live:>20}" for live in LIVE))
    cells: dict[str, list[str]] = {}
    for live in LIVE:
        for name, change in changes(live):
            cells.setdefault(name, []).append(cell(change))
    for name, row in cells.items():
        print(f"{name:36}" + "".join(f"{text:>20}" for text in row))


def cell(change: Change) -> str:
    """Median and the 10th and 90th percentile of how long a change takes."""
    samples = []
    for _ in range(REPEATS):
        started = perf_counter()
        change()
        samples.append((perf_counter() - started) * 1e6)
    tenths = statistics.quantiles(samples, n=10)
    return f"{statistics.median(samples):.0f} ({tenths[0]:.0f}-{tenths[-1]:.0f})"


if __name__ == "__main__":
    table("The tree alone", tree_changes)
    table("With K and V of one layer", cache_changes)
