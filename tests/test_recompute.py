"""The snippet in the documentation recomputes every number of the table from the raw facts."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import chunkbench
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner.executor import LocalExecutor
from chunkbench.bench.runner.run import run_experiment
from chunkbench.bench.runner.target import resolve_target
from chunkbench.cli.progress import RunProgress
from chunkbench.report import write_all

EXPERIMENT = """\
name: recompute
title: a run to recompute
dtype: float32
budget: 1s
implementations: [naive, xformers, shared_prefix_matmul, chunk_attn]
defaults: {n_c: 9, batch_size: 2, heads: 2, head_dim: 32, chunk_size: 16}
sweep:
  - {n_p: 40, n_s: [0, 32]}
"""
FIGURES = (
    "latency_us",
    "append_us",
    "plan_us",
    "step_us",
    "token_rate",
    "roofline_fraction",
    "bandwidth_fraction",
    "ratio_to_baseline",
)


def snippet() -> str:
    text = (Path(__file__).parents[1] / "docs" / "measuring.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    return example.group(1)


def test_the_documented_snippet_gives_every_figure_of_the_report(tmp_path: Path) -> None:
    spec = tmp_path / "recompute.yaml"
    spec.write_text(EXPERIMENT)
    experiment = load_experiment(spec)
    run = run_experiment(
        experiment, LocalExecutor(resolve_target(experiment)), tmp_path / "run", False, [], RunProgress(quiet=True)
    ).run
    write_all(run)
    names: dict[str, Any] = {"RUN": str(run.path)}
    exec(snippet(), names)
    recomputed = names["cases"].set_index("key")
    reported = {case["key"]: case for case in json.loads((run.path / "report.json").read_text())}
    loaded = chunkbench.load(run.path).set_index("key")
    assert len(recomputed) == 6
    assert len(loaded) == len(reported) == 8
    for key, case in recomputed.iterrows():
        for figure in FIGURES:
            assert math.isclose(case[figure], reported[key][figure], rel_tol=1e-9), figure
            assert math.isclose(case[figure], loaded.loc[key, figure], rel_tol=1e-9), figure
    unavailable = [case for case in reported.values() if case["implementation"] == "xformers"]
    assert {case["status"] for case in unavailable} == {"unavailable"}
    assert all(case["latency_us"] is None for case in unavailable)


def test_the_snippet_is_python_that_a_reader_can_paste() -> None:
    compile(snippet(), "docs/measuring.md", "exec")
    assert "chunkbench" not in snippet(), "the snippet must not use the code that it checks"
