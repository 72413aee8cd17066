"""How the parents of a pair are made ready: both in the same way, with what their children need."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.measure.caches import sweep_file
from chunkbench.bench.runner.client import WorkerProcess
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.store import MEASURED
from chunkbench.cli.progress import RepeatProgress
from chunkbench.report.compare.interleaved import Interleaved, InterleavedJob
from chunkbench.report.compare.sides import Side


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares memory by a path of a process")
def test_both_parents_make_the_inputs_of_the_points_and_sweep_alike(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load_experiment(spec)
    target = resolve_target(experiment)
    (dtype,) = {point.dtype for point in experiment.points(target.device, target.dtype)}
    other = replace(target, dtype="float16" if dtype != "float16" else "float32")  # what the machine would prefer
    job = InterleavedJob(experiment, other, tmp_path, RepeatProgress(quiet=True), processes=1)
    asked: list[dict[str, Any]] = []

    def ask(self: WorkerProcess, op: str, limit_s: float, original: Any = WorkerProcess.ask, **arguments: Any) -> Any:
        if op == "warm":
            asked.append(arguments)
        return original(self, op, limit_s, **arguments)

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    sides = Side("base", "BASE"), Side("head", "HEAD")
    with job.listener, sweep_file() as swept:
        base, head = Interleaved(job, *sides).pair(1, None, swept)
    assert all(case.status in MEASURED for case in base.cases + head.cases)
    assert len(asked) == 2
    assert {arguments["dtype"] for arguments in asked} == {dtype}
    assert {arguments["sweep_file"] for arguments in asked} == {swept}
    assert asked[0] == asked[1]
