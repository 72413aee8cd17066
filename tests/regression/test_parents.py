"""How the parents of a pair are made ready: both in the same way, with what their children need."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkbench.cli.progress import RepeatProgress
from chunkbench.experiment import load_experiment
from chunkbench.regression.job import Job
from chunkbench.regression.paired import Side, Turns
from chunkbench.regression.side_build import installed_build
from chunkbench.regression.sides import make_sides
from chunkbench.runner.client import WorkerProcess
from chunkbench.runner.target import resolve
from chunkbench.store import MEASURED


def _of_an_older_revision(side: Side) -> Side:
    def start() -> WorkerProcess:
        worker = side.start()
        worker.takes_sweep_file = False
        return worker

    return replace(side, start=start)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares memory by a path of a process")
@pytest.mark.parametrize("older", [False, True])
def test_both_parents_make_the_inputs_of_the_points_and_sweep_alike(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    experiment = load_experiment(spec)
    target = resolve(experiment)
    (dtype,) = {point.dtype for point in experiment.points(target.device, target.dtype)}
    other = replace(target, dtype="float16" if dtype != "float16" else "float32")  # what the machine would prefer
    job = Job(experiment, other, tmp_path, RepeatProgress(quiet=True))
    asked: list[dict[str, Any]] = []

    def ask(self: WorkerProcess, op: str, limit_s: float, original: Any = WorkerProcess.ask, **arguments: Any) -> Any:
        if op == "warm":
            asked.append(arguments)
        return original(self, op, limit_s, **arguments)

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    with job.listener, installed_build(experiment) as build:
        base, head = make_sides(job, build, build)
        turns = Turns(job, _of_an_older_revision(base) if older else base, head)
        runs = turns.measure(1)
    assert all(case.status in MEASURED for case in runs.base[0].cases + runs.head[0].cases)
    assert len(asked) == 2
    assert {arguments["dtype"] for arguments in asked} == {dtype}
    assert [bool(arguments.get("sweep_file")) for arguments in asked] == [not older] * 2
    assert asked[0] == asked[1]
