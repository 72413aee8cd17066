"""A worker in which an implementation is slower or wrong on purpose. Tests ask whether comparisons detect it.

    python tests/slowed_worker.py chunk_attn 0.10          10% slower in every point
    python tests/slowed_worker.py chunk_attn 0.10,0.20     10% in points without shared tokens, 20% in others
    python tests/slowed_worker.py chunk_attn 0.10 naive 0  several implementations, each with its fault

After every call it watches the clock until the call has taken that much longer. It does nothing else: in cold caches
even a small matrix product takes up to 60 us at once, more than 3% of a short call.
`wrong` instead of a number adds 1 to the output; `crash` ends the process.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter
from typing import Any

import torch

from chunkbench import workloads
from chunkbench.bench.registry import Registry
from chunkbench.bench.workers import main

*FAULTY, KIND = sys.argv[1:]
FAULTS = dict(zip(FAULTY[::2], FAULTY[1::2], strict=True))


def faulty(decode: Any, fault: str, shared: bool) -> Any:
    share = float(fault.split(",")[-1 if shared else 0]) if fault not in ("wrong", "crash") else 0.0

    def call(q: torch.Tensor, out: torch.Tensor) -> None:
        started = perf_counter()
        decode(q, out)
        if fault == "wrong":
            out += 1
        elif fault == "crash":
            os.abort()
        else:
            until = perf_counter() + share * (perf_counter() - started)
            while perf_counter() < until:
                pass

    return call


def load(self: Registry, name: str, original: Any = Registry.load) -> Any:
    implementation = original(self, name)
    if name in FAULTS:
        prepare = implementation.prepare

        def prepare_faulty(inputs: Any) -> Any:
            session = prepare(inputs)
            session.decode = faulty(session.decode, FAULTS[name], inputs.point.n_s > 0)
            return session

        implementation.prepare = prepare_faulty
    return implementation


if __name__ == "__main__":
    Registry.load = load  # type: ignore[method-assign]
    sys.argv[1:] = [KIND]
    workloads.register()
    main.main()
