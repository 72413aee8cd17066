"""The time of one change of the cache, depending on the number of live sequences.

    python benchmarks/cache_costs.py

Prints microseconds: the median of many changes, and in brackets the 10th and 90th percentile. All sequences have 1,024
tokens and share the first half. A column is a number of live sequences. If the cost of a change depends only on the
sequences that it changes, its row shows the same figure in every column. The plan covers all sequences, so its cost
grows with their number.

The first table is the tree alone. The second adds K and V of one layer (8 heads of 128, bfloat16 if the CPU has
instructions for it, else float32), as the class `ChunkAttention` writes them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch

from chunkbench import ChunkAttention
from chunkbench.kvcache import PrefixTree

LIVE = (8, 32, 128, 512)
CHUNK, KV_HEADS, HEAD_DIM = 64, 8, 128
SHARED, PROMPT, TAKEN = 512, 1024, 4
REPEATS = 300

Change = Callable[[], object]


def prompt(row: int) -> list[int]:
    """Token ids of one prompt: the shared half, then private tokens."""
    return [*range(SHARED), *range((row + 1) << 20, ((row + 1) << 20) + PROMPT - SHARED)]


def tree_changes(live: int) -> Iterator[tuple[str, Change]]:
    """The changes of a tree with `live` sequences."""
    tree = PrefixTree(CHUNK)
    ids = [tree.join(prompt(row)).sequence for row in range(live)]
    subset, new_prompt = ids[:: live // TAKEN][:TAKEN], prompt(live)

    def join_and_leave() -> None:
        tree.leave(tree.join(new_prompt).sequence)

    def join_leave_and_plan() -> None:
        join_and_leave()
        tree.plan()

    yield f"append 1 token to {TAKEN} sequences", lambda: tree.append([7] * TAKEN, subset)
    yield "append 32 tokens to 1 sequence", lambda: tree.append([7] * 32, subset[:1], [32])
    yield "join and leave", join_and_leave
    yield "append 1 token to every sequence", lambda: tree.append([7] * live)
    yield "join, leave, and a new plan", join_leave_and_plan


def cache_changes(live: int) -> Iterator[tuple[str, Change]]:
    """The same changes with K and V."""
    bf16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    dtype = torch.bfloat16 if bf16 else torch.float32
    cache = ChunkAttention(KV_HEADS, HEAD_DIM, chunk_size=CHUNK, dtype=dtype)
    k = torch.randn(PROMPT, KV_HEADS, HEAD_DIM).to(dtype)
    ids = []
    for row in range(live):
        cached = cache.cached_tokens(prompt(row))
        ids.append(cache.add_sequence(prompt(row), k[cached:], k[cached:]))
    subset, new_prompt = ids[:: live // TAKEN][:TAKEN], prompt(live)

    def join_and_leave() -> None:
        cached = cache.cached_tokens(new_prompt)
        cache.remove_sequence(cache.add_sequence(new_prompt, k[cached:], k[cached:]))

    def join_leave_and_plan() -> None:
        join_and_leave()
        cache.plan()

    yield (
        f"append 1 token to {TAKEN} sequences",
        lambda: cache.append([7] * TAKEN, k[:TAKEN], k[:TAKEN], subset),
    )
    yield "append 32 tokens to 1 sequence", lambda: cache.append([7] * 32, k[:32], k[:32], subset[:1], [32])
    yield "join and leave", join_and_leave
    yield "append 1 token to every sequence", lambda: cache.append([7] * live, k[:live], k[:live])
    yield "join, leave, and a new plan", join_leave_and_plan


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
    """Median, 10th and 90th percentile of the time of a change."""
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
