"""Clusters that are lost, busy, or have wrong clocks; each test has a cluster of its own."""

from __future__ import annotations

import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from chunkbench.bench.store import open_run
from chunkbench.run_error import RunError
from tests.plugins.ray.conftest import Raylets, executor_of, fleet_of, keys_once, measure, measure_once, waiting
from tests.plugins.ray.listening import RecordingListener

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


def test_without_machines_the_run_ends_and_can_be_resumed(raylets: Raylets, tmp_path: Path) -> None:
    raylets.add("a")
    listener = RecordingListener({2: lambda: raylets.remove("a")})
    experiment = waiting(tmp_path, 5)
    fleet = fleet_of(raylets, listener)
    executor = executor_of(fleet, experiment)
    with pytest.raises(RunError, match="no machine of this kind is left") as raised:
        measure(experiment, executor, tmp_path / "run", listener)
    assert raised.value.remedy == "resume"
    assert open_run(tmp_path / "run").manifest.interrupted
    before = len(open_run(tmp_path / "run").cases)
    assert before >= 2
    fleet.cluster.close()
    raylets.add("b")
    listener = RecordingListener()
    executor = executor_of(fleet_of(raylets, listener), experiment)
    outcome = measure(experiment, executor, tmp_path / "run", listener, resume=True)
    keys_once(outcome.run, 5)
    assert len(listener.points) == 5 - before


def test_a_head_that_dies_ends_the_run_with_a_message(
    raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chunkbench.plugins.ray.connection.HEAD_LIMIT_S", 3.0)
    raylets.add("a")
    (raylets.folder / "seconds").write_text("0.5")
    listener = RecordingListener({2: lambda: raylets.head.kill_gcs_server()})
    experiment = waiting(tmp_path, 60)
    executor = executor_of(fleet_of(raylets, listener), experiment)
    with pytest.raises(RunError, match="the head of the Ray cluster does not answer") as raised:
        measure(experiment, executor, tmp_path / "run", listener)
    assert raised.value.remedy == "resume"
    run = open_run(tmp_path / "run")
    assert run.manifest.interrupted
    assert len(run.cases) >= 2


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, out);
    if (id == CLOCK_REALTIME) out->tv_sec += 3600;
    return result;
}
"""


def test_a_clock_that_is_an_hour_off_is_noticed_and_corrected(
    raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shim.c").write_text(SHIM)
    library = tmp_path / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "shim.c"), "-ldl"], check=True)
    # Ray sets LD_PRELOAD of what it starts by its own variable.
    monkeypatch.setenv("RAY_JEMALLOC_LIB_PATH", str(library))
    monkeypatch.setenv("RAY_LD_PRELOAD_ON_WORKERS", "1")
    raylets.add("late")
    listener = RecordingListener()
    run = measure_once(fleet_of(raylets, listener), 3, tmp_path, listener)
    manifest = run.manifest
    offset = manifest.machines["late"].model_dump()["clock_offset_s"]
    assert offset == pytest.approx(3600, abs=5)
    started = manifest.model_dump()["started_at"]
    for case in run.cases:
        assert abs(_seconds(case.started_at) - _seconds(started)) < 120


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_busy_machine_is_named(raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr("chunkbench.plugins.ray.executor._WAITING_S", 1.0)
    raylets.add("a")
    listener = RecordingListener()
    fleet = fleet_of(raylets, listener)

    @ray.remote(num_cpus=1)
    def other_work() -> None:
        time.sleep(4)

    busy = other_work.remote()
    time.sleep(1)
    measure_once(fleet, 2, tmp_path, listener)
    assert any(problem.startswith("waiting for a at") for problem in listener.problems)
    ray.get(busy)
