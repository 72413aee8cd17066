"""How long the host plans for the GPU kernels: 256 sequences under a tree of three levels, as they decode.

    python benchmarks/gpu_planning.py

Prints CPU time. Runs on any machine with Triton: nothing is launched, and the copy to the device is one in memory where
there is no GPU. Every sequence is at another place of its chunk, so that at each step four of them begin one: the
structure changes at every step, which is the worst that steady decoding does. Beside it, what a step costs on average
where all sequences begin their chunks together, as in Table 3: one plan in 64 steps.
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
    """Microseconds of CPU time of each step's plan, and of those among them that had a new structure to follow."""
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
    # Room for the ids alone: nothing is read, so that one chunk's memory can stand for all.
    store.grow(1)
    store.locate = lambda chunks: (np.zeros_like(chunks), chunks)  # type: ignore[method-assign]
    every, new = [], []
    for step in range(STEPS):
        before = tree.plan_rebuilds
        appended = tree.append([step] * ROWS)
        store.follow(appended.chunks, appended.slots + 1)  # which the append of K and V does, and is timed as
        started = thread_time()  # what else the machine does is no part of it
        kernel.plan(tree.plan())
        every.append((thread_time() - started) * 1e6)
        if tree.plan_rebuilds > before:
            new.append(every[-1])
    return every, new


def main() -> None:
    torch.set_num_threads(1)  # a copy in memory would be spread over threads; one to a GPU is not
    for name, spread in (("chunks begin at every step", True), ("chunks begin together", False)):
        every, new = planning(spread)
        low, middle, high = np.percentile(new, [5, 50, 95])
        print(
            f"{name}: {len(new)} of {len(every)} steps had a new plan, {middle:.0f} us each ({low:.0f} to {high:.0f}); "
            f"{statistics.fmean(every):.0f} us a step on average"
        )


if __name__ == "__main__":
    main()
