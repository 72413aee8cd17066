"""The engine's own time of a step at 32 sequences, greedy and with top-p: everything but the model.

Scheduling, tree, plan and sampling; the limit for greedy tokens is 2 ms. Run it with
`python benchmarks/engine_cost.py`.
"""

from __future__ import annotations

import statistics

import torch

from chunkbench.experiment.llama import SHAPES
from chunkbench.serving.engine import Engine, EngineOptions, Model, Request, Sampling
from chunkbench.serving.engine.model import llama_config, random_module

BATCH, N_P, STEPS, SKIPPED = 32, 256, 64, 8
HOW = {"greedy": Sampling(), "temperature 1": Sampling(1.0), "top-p 0.9": Sampling(1.0, 0.9)}


def main() -> None:
    print(f"ms of a step at b = {BATCH}, median of {STEPS - SKIPPED} steps (lowest..highest quarter)")
    print(f"{'vocabulary':>10} {'tokens':>14} {'schedule':>24} {'sample':>24}")
    for vocabulary in (2048, 32000, 128256):
        config = llama_config(SHAPES["small-llama"], 1, vocabulary)
        model = Model(random_module(config, torch.bfloat16))
        engine = Engine(model, EngineOptions(kv_bytes=model.token_bytes * BATCH * (N_P + 2 * STEPS)))
        for name, sampling in HOW.items():
            for number in range(BATCH):
                prompt = torch.randint(vocabulary, (N_P,), generator=torch.Generator().manual_seed(number)).tolist()
                engine.add(Request(f"{name} {number}", prompt, STEPS, sampling, ignore_eos=True))
            reports = []
            while not engine.idle:
                reports.append(engine.step())
            decoding = [report for report in reports if report.batch == BATCH and not report.prompt_tokens][SKIPPED:]
            schedule = quartiles([report.schedule_s for report in decoding])
            print(f"{vocabulary:>10} {name:>14} {schedule} {quartiles([report.sample_s for report in decoding])}")


def quartiles(seconds: list[float]) -> str:
    low, middle, high = (1e3 * value for value in statistics.quantiles(seconds, n=4))
    return f"{middle:>8.2f} ({low:.2f}..{high:.2f})".rjust(24)


if __name__ == "__main__":
    main()
