"""A process of a replay that is lost: its replay is `crashed`, all others are computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import cast

import pytest

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner.passes import Budget
from chunkbench.bench.runner.target import resolve_target
from chunkbench.workloads.replay import measure
from chunkbench.workloads.replay.job import Answered, ReplayJob
from chunkbench.workloads.replay.result import ReplayResult
from chunkbench.workloads.replay.spec import ReplayExperiment

TEXT = """\
kind: replay
requests: 2
arrival_seeds: 2
implementations: [paged, prefix_tree]
sweep: [{n_p: 64, n_s: 64, n_c: 2, rate: 60}]
"""


class Pool:
    """Stands for the pool of processes and computes in this one. The first pool is broken: a process was lost while it
    computed, or before (`at_once`). So is every later one that gets a replay of the manager `deadly`."""

    def __init__(self, broken: bool, at_once: bool, deadly: str) -> None:
        self._broken, self._at_once, self._deadly = broken, at_once, deadly
        self._processes: dict[int, object] = {}

    def submit(self, compute: Callable[[ReplayJob], Answered], job: ReplayJob) -> Future[Answered]:
        if self._broken and self._at_once:
            raise BrokenProcessPool
        future: Future[Answered] = Future()
        if self._broken or job.manager == self._deadly:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(compute(job))
        return future

    def shutdown(self, wait: bool, cancel_futures: bool) -> None:
        """Nothing."""


def rows(folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool, deadly: str = "") -> dict[str, ReplayResult]:
    """The row of each manager."""
    (folder / "x.yaml").write_text(TEXT)
    experiment = cast(ReplayExperiment, load_experiment(folder / "x.yaml"))
    target = resolve_target(experiment)
    (point,) = experiment.points(target.device, target.dtype)
    made: list[Pool] = []

    def make(*_: object) -> Pool:
        assert len(made) < 9, "the same replays are tried again and again"
        made.append(Pool(not made, at_once, deadly))
        return made[-1]

    monkeypatch.setattr(measure, "ProcessPoolExecutor", make)
    measurer = measure.ReplayMeasurer(experiment, target)
    found = measurer.measure([point], {point: experiment.cases(point)}, Budget(1.0), lambda _: None)
    return {row.implementation: row for row in found[point]}


def test_the_replay_that_loses_its_process_is_found_and_the_others_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows(tmp_path, monkeypatch, at_once=False, deadly="paged")
    assert (found["paged"].status, found["paged"].reason) == ("crashed", "the process of the replay was lost")
    assert found["prefix_tree"].status == "ok"
    assert len(found["prefix_tree"].us_per_token) == 2


def test_replays_are_computed_after_their_processes_were_lost_before_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows(tmp_path, monkeypatch, at_once=True)
    assert {row.status for row in found.values()} == {"ok"}
