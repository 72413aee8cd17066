"""Recompute all figures of a run of one machine from its two files, with pandas and without ChunkBench.

python examples/recompute.py RUN
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

SIZES = ["n_p", "n_s", "n_c", "batch_size", "heads", "kv_heads", "head_dim", "chunk_size", "block_size"]
AXES = [*SIZES, "prompts", "tree", "dtype", "device", "protocol", "cache", "mode"]


def over_rounds(samples: list[list[float]]) -> float:
    """Mean over the steps of a round, then the median over rounds."""
    return median(fmean(steps) for steps in samples)


def fraction(case: Any, moved: list[float], flops: list[float]) -> float:
    """Share of the time that the machine's peaks allow: formed per round, then the median."""
    rounds: list[float] = []
    for peaks, samples in zip(case.peaks, case.samples_us, strict=True):
        memory = [1e6 * n / peaks["read_bytes_per_s"] for n in moved]
        matrix = [1e6 * n / peaks["matrix_flops_per_s"] for n in flops]
        rounds.append(sum(map(max, memory, matrix)) / sum(samples))
    return median(rounds)


def ratio(case: Any, base: Any) -> float | None:
    """Ratio of the two latencies, from the rounds of the memory groups that have both. None without such a round."""
    groups = set(case.groups) & set(base.groups)
    if not groups:
        return None
    times: list[list[float]] = [
        [fmean(steps) for steps, group in zip(one.samples_us, one.groups, strict=True) if group in groups]
        for one in (case, base)
    ]
    return median(times[0]) / median(times[1])


def figures(run: Path) -> pd.DataFrame:
    """A row for each correct case of the run directory, with its figures in the units of `chunkbench.load`."""
    experiment = json.loads((run / "manifest.json").read_text())["experiment"]
    cases = pd.DataFrame(json.loads(line) for line in (run / "cases.jsonl").read_text().splitlines())
    cases = cases[cases.status.isin(["ok", "noisy"])]
    cases["latency_us"] = cases.samples_us.map(over_rounds)
    cases["append_us"] = cases.append_samples_us.map(over_rounds)
    cases["plan_us"] = cases.plan_samples_us.map(over_rounds)
    cases["step_us"] = cases.append_us + cases.plan_us + cases.latency_us
    cases["token_rate"] = cases.batch_size * 1e6 / cases.latency_us
    cases["roofline_fraction"] = [fraction(c, c.unique_bytes, c.flops) for c in cases.itertuples()]
    cases["bandwidth_fraction"] = [fraction(c, c.read_bytes, [0] * len(c.flops)) for c in cases.itertuples()]
    cases["point"] = [json.dumps(values) for values in cases[AXES].values.tolist()]
    baseline = cases[cases.implementation == experiment["baseline"]].set_index("point")
    cases["ratio_to_baseline"] = [
        ratio(c, baseline.loc[c.point]) if c.point in baseline.index else None for c in cases.itertuples()
    ]
    return cases


if __name__ == "__main__":
    columns = ["implementation", "n_p", "n_s", "latency_us", "step_us", "roofline_fraction", "ratio_to_baseline"]
    print(figures(Path(sys.argv[1]))[columns].to_string(index=False))
