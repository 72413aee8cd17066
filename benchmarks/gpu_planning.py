"""The host's time to plan for the GPU kernels, while 256 sequences under a tree of three levels decode.

    python benchmarks/gpu_planning.py

Prints CPU time. Runs on any machine with Triton: it launches no kernel, and without a GPU the copy to the device is a
copy in memory. In the first case, sequences have different numbers of tokens in their last chunks, so at each step four
of them begin a chunk. The structure changes at every step, which is the worst case of steady decoding. In the second
case, all sequences begin their chunks together, as in Table 3: one new plan in 64 steps.
"""

from __future__ import annotations

import os
import statistics
from time import thread_time

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np

from chunkbench.kernels.triton.decode import TppTriton
from chunkbench.kernels.triton.store import TritonStore
from chunkbench.kvcache import PrefixTree

ROWS, CHUNK, KV_HEADS, HEADS = 256, 64, 8, 32
LEVELS = (1024, 512, 512)
STEPS = 3 * CHUNK


def planning(spread: bool) -> tuple[list[float], list[float]]:
    """Microseconds of CPU time of each step's plan; and, as second list, only those of steps with a new structure."""
    tree = PrefixTree(CHUNK)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    store = TritonStore(CHUNK, KV_HEADS, 128, torch.float16, device)
    kernel = TppTriton(store, HEADS)
    for row in range(ROWS):
        group = row // 16
        private = LEVELS[2] + (row % CHUNK if spread else 0)
        parts = (range(LEVELS[0]), range(LEVELS[1]), range(private))
        starts = (0, (group + 1) << 20, (row + 1) << 30)
        tree.join([start + token for start, part in zip(starts, parts, strict=True) for token in part])
    # No kernel reads K and V, so the memory of one chunk can stand for all chunks.
    store.grow(1)
    store.locate = lambda chunks: (np.zeros_like(chunks), chunks)  # type: ignore[method-assign]
    every, new = [], []
    for step in range(STEPS):
        before = tree.plan_rebuilds
        appended = tree.append([step] * ROWS)
        store.follow(appended.chunks, appended.slots + 1)  # untimed: it belongs to the append of K and V
        started = thread_time()  # CPU time, so that other load on the machine does not count
        kernel.plan(tree.plan())
        every.append((thread_time() - started) * 1e6)
        if tree.plan_rebuilds > before:
            new.append(every[-1])
    return every, new


def main() -> None:
    torch.set_num_threads(1)  # a copy in memory would use several threads, unlike a copy to a GPU
    for name, spread in (("chunks begin at every step", True), ("chunks begin together", False)):
        every, new = planning(spread)
        low, middle, high = np.percentile(new, [5, 50, 95])
        print(
            f"{name}: {len(new)} of {len(every)} steps had a new plan, {middle:.0f} us each ({low:.0f} to {high:.0f}); "
            f"{statistics.fmean(every):.0f} us a step on average"
        )


if __name__ == "__main__":
    main()
