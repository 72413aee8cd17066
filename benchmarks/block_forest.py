"""What finding shared prefixes costs inside vLLM: planning a step from block tables at 256 sequences.

256 sequences of 1024 to 4096 tokens, of which 768 are one of four system prompts; blocks of 32 tokens, 32 heads. Eight
sequences begin a block at each step, so each step has a new plan. Limit: 2 ms for the median step. Run it with
`python benchmarks/block_forest.py`.
"""

from __future__ import annotations

import random
import statistics
import time

import numpy as np
import torch

from chunkbench.integrations.vllm.steps import Blocks, Steps

BATCH, SIZE, SHARED, STEPS = 256, 32, 768, 400


def main() -> None:
    chance = random.Random(0)
    free = iter(range(1 << 20))
    systems = [[next(free) for _ in range(SHARED // SIZE)] for _ in range(4)]

    def sequence() -> tuple[list[int], int]:
        length = chance.randrange(1024, 4096)
        return chance.choice(systems) + [next(free) for _ in range(-(-length // SIZE) - SHARED // SIZE)], length

    live = [sequence() for _ in range(BATCH)]
    steps = Steps(Blocks(32, 128, SIZE, torch.bfloat16), 32)
    times: dict[str, list[float]] = {"decodes": [], "joins or leaves": []}
    for number in range(STEPS):
        changes = number % 4 == 3
        live = [(table if length % SIZE else [*table, next(free)], length + 1) for table, length in live]
        if changes:
            live.pop(chance.randrange(len(live)))
            live.append(sequence())
        table = np.zeros((BATCH, 160), np.int64)
        for row, (blocks, _) in enumerate(live):
            table[row, : len(blocks)] = blocks
        lengths = np.array([length for _, length in live])
        started = time.perf_counter()
        steps.plan(table, lengths, np.arange(BATCH + 1))
        times["joins or leaves" if changes else "decodes"].append(time.perf_counter() - started)
    for name, seconds in times.items():
        low, middle, high = (1e3 * value for value in statistics.quantiles(seconds[5:], n=4))
        print(
            f"a step that {name}: {middle:.2f} ms (quarters {low:.2f}..{high:.2f}), worst {max(seconds[5:]) * 1e3:.2f}"
        )


if __name__ == "__main__":
    main()
