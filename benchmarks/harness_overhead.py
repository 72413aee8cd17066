"""Measures the time that the harness adds to each timed call.

Times the calls of a session that does nothing. Such a call contains two readings of the clock, one method call, and the
bytecode between them. Run it with `python benchmarks/harness_overhead.py`; the limit is 2 us on the CPU path.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from chunkbench.bench.contract import Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.measure.caches import CacheSweeper
from chunkbench.bench.measure.loop import run_round
from chunkbench.bench.workers.inputs import PooledInputs

STEPS, ROUNDS = 512, 9


class EmptySession(Session):
    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        pass

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        pass

    def rewind(self) -> None:
        pass

    def kv_bytes(self) -> int:
        return 0


def main() -> None:
    point = AttentionPoint(
        n_p=64, n_s=0, n_c=STEPS, batch_size=32, heads=32, kv_heads=32, head_dim=128, chunk_size=64, block_size=32,
        dtype="float32", device="cpu",
    )  # fmt: skip
    inputs = PooledInputs(point, seed=0)
    out = torch.empty(32, 32, 128)
    for cache, sweep in (("warm", None), ("cold", CacheSweeper("cpu", 1 << 25).sweep)):
        medians = []
        worst = 0.0
        for number in range(ROUNDS):
            result = run_round(EmptySession(), inputs, out, STEPS, range(1, STEPS + 1), number, sweep)
            medians.append(statistics.median(result.decode_us))
            worst = max(worst, statistics.quantiles(result.decode_us, n=100)[-1])
        low, middle, high = min(medians), statistics.median(medians), max(medians)
        print(
            f"{cache}: {middle:.2f} us per timed call (medians of {ROUNDS} rounds of {STEPS} calls: {low:.2f} to "
            f"{high:.2f}; worst 99th percentile {worst:.2f})"
        )


if __name__ == "__main__":
    main()
