"""Measures how long a step of `chunkbench.server.engine` takes, and predicts how much faster jumps make answers. A jump
appends the text that a constraint forces, without a step for each token.

    python benchmarks/step_times.py                                     prints the table for SmolLM2 in bfloat16
    python benchmarks/step_times.py results/runs/constrained-*/         also predicts a run of `constrained`

A step computes k rows (tokens) and m logits (one for each decoding sequence). If k is larger than m, some sequences
compute several tokens in the step, as after a jump. The prediction uses the counts of the run: an answer takes
`sampled` steps. Each token of the prompt and of the answer is a row of one of these steps.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch

from chunkbench import workloads
from chunkbench.bench.store import open_run
from chunkbench.server import smollm2
from chunkbench.server.engine import Engine, EngineOptions, Model, Request
from chunkbench.server.engine.model import INTERFACE, load_module
from chunkbench.workloads.serving.result import ServingResult

LOGITS = (1, 8, 32)
ROWS = (1, 2, 4, 8)
"""Rows / logits of the measured steps."""
_STEPS, _PROMPT, _PIECE = 40, 64, 6


def step_s(model: Model, logits: int, rows: int) -> float:
    """Median seconds of a step that computes `rows` tokens and chooses new tokens for `logits` sequences."""
    engine = Engine(model, EngineOptions(kv_bytes=512 << 20))
    rng = random.Random(0)
    for number in range(logits):
        prompt = [rng.randrange(1000, 9000) for _ in range(_PROMPT)]
        engine.add(Request(str(number), prompt, 1000, ignore_eos=True))
    while any(sequence.computed < _PROMPT for sequence in engine._scheduler.running) or engine.waiting:
        engine.step()
    times = []
    for _ in range(_STEPS):
        more = rows - logits
        for sequence in rng.sample(engine._scheduler.running, logits):
            piece = min(more, _PIECE if rows < 4 * logits else -(-(rows - logits) // logits))
            sequence.tokens += [rng.randrange(1000, 9000) for _ in range(piece)]
            more -= piece
        times.append(engine.step().seconds)
    return median(times[2:])


def main() -> None:
    workloads.register()
    model = Model(load_module(smollm2.checkpoint(), torch.bfloat16, INTERFACE))
    table = {logits: {logits * each: step_s(model, logits, logits * each) for each in ROWS} for logits in LOGITS}
    print("| m logits | " + " | ".join(f"{each} m rows" for each in ROWS) + " |")
    print("| --- " * (1 + len(ROWS)) + "|")
    for logits, times in table.items():
        print(f"| {logits} | {' | '.join(f'{seconds * 1e3:.1f} ms' for seconds in times.values())} |")
    for path in sys.argv[1:]:
        predict(Path(path), table)


def predict(path: Path, table: dict[int, dict[int, float]]) -> None:
    """Print the answers per second of a run, relative to the system `chunk_llama_mask`: as predicted from `table` and
    as measured.

    `table`: number of logits -> number of rows -> seconds of a step."""
    by_clients: dict[int, dict[str, tuple[float, float]]] = {}
    for case in open_run(path).cases:
        assert isinstance(case, ServingResult)
        measurements = [m for m in case.measurements if m.constrained and m.constrained.work.get("sampled")]
        times = table.get(case.clients or 0)
        if not measurements or times is None or case.clients is None:
            continue
        sampled, forced = (
            fmean(m.constrained.work[name] / m.constrained.work["told"] for m in measurements if m.constrained)
            for name in ("sampled", "forced")
        )
        prompt = fmean(request.prompt_tokens or 0 for m in measurements for request in m.requests)
        rows = case.clients * (sampled + forced + prompt) / sampled
        predicted = case.clients / (sampled * float(np.interp(rows, list(times), list(times.values()))))
        measured = median(len(m.requests) / max(request.last or 0 for request in m.requests) for m in measurements)
        by_clients.setdefault(case.clients, {})[case.implementation] = predicted, measured
    print("\n| clients | system | by the table | measured | measured of predicted |\n| --- | --- | --- | --- | --- |")
    for clients, systems in by_clients.items():
        base = systems.get("chunk_llama_mask")
        for name, (predicted, measured) in systems.items():
            if base is not None:
                ratios = predicted / base[0], measured / base[1]
                print(f"| {clients} | {name} | {ratios[0]:.2f}x | {ratios[1]:.2f}x | {ratios[1] / ratios[0]:.2f} |")


if __name__ == "__main__":
    main()
