"""Machines that fail during a run, on a cluster that all tests share: every point is measured once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from chunkbench.plugins.ray.fleet import Fleet
from tests.plugins.ray.conftest import Raylets, executor_of, keys_once, measure, measure_once, waiting
from tests.plugins.ray.listening import RecordingListener

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_each_kind_of_machine_measures_everything_once(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    """On all machines of a kind; the run knows them."""
    raylets, fleet = many
    listener = RecordingListener()
    experiment = waiting(tmp_path, 9)
    executor = executor_of(fleet, experiment, "each")
    run = measure(experiment, executor, tmp_path / "run", listener).run
    assert run.manifest.machines.keys() == {case.machine for case in run.cases} == {"a", "b", "h"}
    kinds = Counter(run.manifest.machines[case.machine].kind.split(",")[0] for case in run.cases)
    assert kinds == {"A100": 9, "H100": 9}
    assert len({case.key for case in run.cases}) == 9
    assert Counter(n_p for n_p, _, _ in raylets.log()) == {16 * (1 + number): 2 for number in range(9)}
    assert not run.manifest.interrupted
    # On a busy host the workers start slowly.
    assert [problem for problem in listener.problems if not problem.startswith("waiting for ")] == []
    # Nothing is left to do for the same command, and nothing is lost by it.
    again = RecordingListener()
    outcome = measure(experiment, executor, tmp_path / "run", again, resume=True)
    assert len(outcome.run.cases) == 18
    assert again.points == []


def test_a_worker_that_is_killed_costs_only_time(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    raylets, fleet = many
    listener = RecordingListener({1: lambda: raylets.actors()[0].kill()})
    run = measure_once(fleet, 6, tmp_path, listener)
    assert {case.status for case in run.cases} == {"ok"}
    assert any(problem.startswith("lost ") for problem in listener.problems)


def test_a_point_that_kills_two_machines_is_a_row(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    raylets, fleet = many
    (raylets.folder / "kill").write_text("32")
    listener = RecordingListener()
    run = measure_once(fleet, 5, tmp_path, listener)
    statuses = {case.n_p: case.status for case in run.cases}
    assert statuses == {16: "ok", 32: "crashed", 48: "ok", 64: "ok", 80: "ok"}
    (crashed,) = (case for case in run.cases if case.status == "crashed")
    assert crashed.reason.startswith("lost with 2 machines: ")
    assert [n_p for n_p, _, _ in raylets.log()].count(32) == 2


def test_a_machine_that_hangs_is_given_up(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    raylets, fleet = many
    (raylets.folder / "stop").write_text("32")
    listener = RecordingListener()
    run = measure_once(fleet, 5, tmp_path, listener, silent_s=4.0)
    assert {case.status for case in run.cases} == {"ok"}
    assert any("has not answered for 4 s" in problem for problem in listener.problems)


@pytest.mark.slow
def test_a_full_object_store_does_not_matter(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    _, fleet = many
    import numpy as np
    import ray

    listener = RecordingListener()

    class Hoarder:
        def fill(self) -> int:
            self.kept = [ray.put(np.zeros(1 << 20)) for _ in range(12)]  # 96 MB, the store has 80
            return len(self.kept)

    hoarders = [fleet.cluster.remote(Hoarder, node.resources, num_cpus=0).remote() for node in fleet.nodes]
    assert ray.get([hoarder.fill.remote() for hoarder in hoarders]) == [12] * len(fleet.nodes)
    measure_once(fleet, 6, tmp_path, listener)
    assert listener.problems == []


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    raylets, fleet = many
    (raylets.folder / "seconds").write_text("0.5")
    listener = RecordingListener({3: lambda: os.kill(os.getpid(), signal.SIGINT)})
    experiment = waiting(tmp_path, 12)
    executor = executor_of(fleet, experiment)
    outcome = measure(experiment, executor, tmp_path / "run", listener)
    assert outcome.interrupted
    assert 3 <= len(outcome.run.cases) < 12
    outcome = measure(experiment, executor, tmp_path / "run", RecordingListener(), resume=True)
    keys_once(outcome.run, 12)


def test_a_machine_that_joins_takes_part(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    raylets, fleet = many
    seconds = raylets.folder / "seconds"
    seconds.write_text("1.0")

    def hurry() -> None:
        if any(machine == "c" for _, machine, _ in raylets.log()):
            (raylets.folder / "soon").write_text("0.05")
            (raylets.folder / "soon").rename(seconds)  # nodes read it meanwhile

    actions = dict.fromkeys(range(2, 60), hurry)
    listener = RecordingListener({1: lambda: raylets.add("c:A100"), **actions})
    run = measure_once(fleet, 60, tmp_path, listener)
    assert {case.machine for case in run.cases} == {"a", "b", "c"}
    assert any("joined" in problem for problem in listener.problems)


def test_a_node_that_is_lost_costs_only_time(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    raylets, fleet = many
    (raylets.folder / "seconds").write_text("0.5")
    listener = RecordingListener({1: lambda: raylets.remove("a")})
    # There are enough points for all machines twice more: an idle machine could be lost without a word.
    run = measure_once(fleet, 12, tmp_path, listener)
    assert {case.status for case in run.cases} == {"ok"}
    lost = next(number for number, problem in enumerate(listener.problems) if problem.startswith("lost a at"))
    assert "a" not in {machine for _, machine in listener.points[listener.points_before[lost] + 1 :]}
