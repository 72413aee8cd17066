"""Clusters that are lost, busy or have a wrong clock, and nodes with other software: a cluster for each test."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from chunkbench.bench.store import open_run
from chunkbench.run_error import RunError
from tests.example_project import committed_example, slower_by
from tests.plugins.ray.conftest import (
    ON_NODES,
    SMALL,
    Raylets,
    command,
    executor_of,
    fleet_of,
    keys_once,
    measure,
    measure_once,
    waiting,
)
from tests.plugins.ray.listening import RecordingListener
from tests.torture.harm import Page, library

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


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


def test_a_head_that_dies_ends_the_run_with_a_message(raylets: Raylets, tmp_path: Path) -> None:
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


def test_a_clock_that_is_an_hour_off_is_noticed_and_corrected(raylets: Raylets, tmp_path: Path) -> None:
    page = Page(tmp_path / "page")
    page.clock(3600)
    # Ray sets LD_PRELOAD of what it starts by its own variable.
    preloaded = {"RAY_JEMALLOC_LIB_PATH": str(library()), "RAY_LD_PRELOAD_ON_WORKERS": "1"}
    with mock.patch.dict(os.environ, preloaded):
        raylets.add("late", TORTURE_PAGE=str(tmp_path / "page"))
    listener = RecordingListener()
    run = measure_once(fleet_of(raylets, listener), 3, tmp_path, listener)
    manifest = run.manifest
    offset = manifest.machines["late"].model_dump()["clock_offset_s"]
    assert offset == pytest.approx(3600, abs=5)
    started = datetime.fromisoformat(manifest.model_dump()["started_at"])
    for case in run.cases:
        assert abs(datetime.fromisoformat(case.started_at) - started) < timedelta(minutes=2)


def test_a_busy_machine_is_named(raylets: Raylets, tmp_path: Path) -> None:
    import ray

    raylets.add("a")
    listener = RecordingListener()
    fleet = fleet_of(raylets, listener)

    @ray.remote(num_cpus=1)
    def other_work() -> None:
        time.sleep(20)

    busy = other_work.remote()
    time.sleep(1)
    measure_once(fleet, 2, tmp_path, listener)
    assert any(problem.startswith("waiting for a at") for problem in listener.problems)
    ray.get(busy)


KILLS = 20
POINTS = 16 * KILLS
"""More than three machines measure between the start of a driver and its end, so that every kill meets a live run."""
DRIVER = """
import sys
import ray
ray.init(sys.argv[1], runtime_env={"worker_process_setup_hook": "waiting_kind.add"}, log_to_driver=False)
import waiting_kind
waiting_kind.add()
from chunkbench.cli.main import main
sys.argv[1:] = sys.argv[2:]
main()
"""


@pytest.mark.timeout(120 + 40 * KILLS)
def test_a_driver_that_is_killed_at_random_moments(raylets: Raylets, tmp_path: Path) -> None:
    raylets.add("a", "b", "c")
    (raylets.folder / "seconds").write_text("0.8")
    waiting(tmp_path, POINTS)
    (tmp_path / "driver.py").write_text(DRIVER)
    run = tmp_path / "run"
    words = [sys.executable, str(tmp_path / "driver.py"), raylets.ray.address]
    words += ["run", str(tmp_path / "waiting.yaml"), "--on", "ray", "--out", str(run), "-q"]
    environment = os.environ | {"PYTHONPATH": str(ON_NODES)}
    rng = random.Random(os.urandom(8))
    moments = []

    def resumed() -> list[str]:
        return [*words, *(["--resume"] if (run / "manifest.json").exists() else [])]

    for _ in range(KILLS):
        driver = subprocess.Popen(resumed(), env=environment, start_new_session=True)
        moments.append(rng.uniform(0.5, 8.0))
        time.sleep(moments[-1])
        assert driver.poll() is None, "the run ended before it was killed"
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        time.sleep(rng.uniform(0, 1.0))
    done = subprocess.run(resumed(), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"killed after {moments}: {done.stderr}"
    keys_once(open_run(run), POINTS)
    assert not open_run(run).manifest.interrupted


def test_regress_measures_both_revisions_on_a_node(raylets: Raylets, tmp_path: Path) -> None:
    example, out = committed_example(tmp_path, budget="1s"), tmp_path / "out"
    with example.module.open("a") as file:  # changed, and not committed
        file.write(slower_by(19))
    search = {"PYTHONPATH": example.environment["PYTHONPATH"]}
    raylets.add("a", **search)
    words = ["regress", "--base", "HEAD", "--processes", "3", "--confidence", "0.5", "--on", "ray", "--out", str(out)]
    done = command(*words, folder=example.path, RAY_ADDRESS=raylets.ray.address, **search)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "slower" in done.stdout
    assert (out / "a").is_dir()


@pytest.fixture
def bare(raylets: Raylets, tmp_path: Path) -> Iterator[Raylets]:
    """A cluster whose only node has all packages but ChunkBench."""
    folder = tmp_path / "bare"
    venv.create(folder, symlinks=True)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    # Through a .pth file only the folder is seen, not the .pth file of the editable installation in it.
    (Path(site) / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["CHUNKBENCH_MACHINE"] = "bare"
    start = [folder / "bin" / "python", "-m", "ray.scripts.scripts", "start", f"--address={raylets.ray.address}"]
    node = subprocess.Popen(
        [*start, "--num-cpus=1", "--block"], env=environment, stdout=subprocess.DEVNULL, cwd=tmp_path,
        start_new_session=True,
    )  # fmt: skip
    try:
        while sum(one["Alive"] for one in raylets.ray.global_state.node_table()) < 2:
            assert node.poll() is None
            time.sleep(0.2)
        yield raylets
    finally:
        node.terminate()
        node.wait()


def test_a_node_without_chunkbench_is_named_and_gets_ours_when_asked(bare: Raylets, tmp_path: Path) -> None:
    def ran(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
        words = ["run", "table3", *SMALL, "--on", "ray", "-q", "--out", str(out)]
        # Ray's workers look for modules in the driver's folder, which is on this host too.
        return command(*words, *more, folder=tmp_path, RAY_ADDRESS=bare.ray.address)

    refused = ran(tmp_path / "refused")
    told = " ".join(refused.stderr.split())
    assert refused.returncode == 2, told
    assert "ChunkBench cannot be imported there (No module named 'chunkbench" in told
    assert "--ship sends this ChunkBench to them" in told
    assert not (tmp_path / "refused").exists()
    done = ran(tmp_path / "run", "--ship")
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path / "run")
    assert {case.implementation for case in run.cases} == {"naive", "chunk_attn"}
    assert {case.status for case in run.cases} <= {"ok", "noisy"}
    assert {case.machine for case in run.cases} == {"bare"}
    assert run.manifest.machines["bare"].model_dump()["native"]["built"]
