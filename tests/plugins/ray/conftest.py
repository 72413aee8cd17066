"""A Ray cluster on this host: several raylets, each with a machine id of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from chunkbench.bench import workload
from chunkbench.bench.experiment import Experiment, load_experiment
from chunkbench.bench.runner.executor import Executor
from chunkbench.bench.runner.run import RunOutcome, run_experiment
from chunkbench.bench.store import Run
from chunkbench.plugins.ray.connection import Cluster
from chunkbench.plugins.ray.executor import Patience, RayExecutor
from chunkbench.plugins.ray.fleet import Fleet
from chunkbench.plugins.ray.nodes import Machines
from chunkbench.workloads.serving.servers.process import free_port
from tests.plugins.ray.listening import RecordingListener

ON_NODES = Path(__file__).parent / "on_nodes"
sys.path.insert(0, str(ON_NODES))

EXPERIMENT = """
name: waiting
kind: waiting
implementations: [naive]
baseline: naive
device: cpu
dtype: float32
budget: 10s
defaults: {n_c: 1, batch_size: 1, heads: 1, head_dim: 32, chunk_size: 16}
sweep:
  - {n_p: [%s], n_s: 0}
"""
SMALL = ["--set", "n_p=64,128", "--set", "n_s=0,64", "--set", "n_c=2", "--set", "batch_size=2"]
SMALL += ["--only", "naive", "--only", "chunk_attn", "--dtype", "float32", "--budget", "2s"]
"""A small part of table3."""


class Raylets:
    """A head without CPUs, and nodes that can be added, removed and killed."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self.folder = folder
        (folder / "seconds").write_text("0.3")
        self.ray = RayCluster()
        self.client_port = free_port()
        self.head = self.ray.add_node(num_cpus=0, include_dashboard=False, ray_client_server_port=self.client_port)
        self.nodes: dict[str, Any] = {}

    def add(self, *machines: str, **variables: str) -> None:
        """Start a raylet for each machine, all at the same time. "a:A100" has an accelerator of that kind."""
        told = {"CHUNKBENCH_TEST_FOLDER": str(self.folder), "PYTHONPATH": str(ON_NODES), **variables}
        for named in machines:
            machine, _, model = named.partition(":")
            self.nodes[machine] = self.ray.add_node(
                num_cpus=1, resources={f"accelerator_type:{model}": 1} if model else None, wait=False,
                object_store_memory=80 << 20, env_vars={"CHUNKBENCH_MACHINE": machine, **told},
            )  # fmt: skip
        self.ray.wait_for_nodes()

    def remove(self, machine: str) -> None:
        """Kill a raylet, with all that runs on it."""
        self.ray.remove_node(self.nodes.pop(machine), allow_graceful=False)

    def actors(self) -> list[psutil.Process]:
        """The processes that measure, on these raylets alone: another test may have raylets of its own on this host.
        Those that measure now come first."""
        raylets = [one.process.pid for node in self.nodes.values() for one in node.all_processes["raylet"]]
        workers = [worker for raylet in raylets for worker in psutil.Process(raylet).children(recursive=True)]
        titles = {worker: " ".join(worker.cmdline()) for worker in workers}
        found = [worker for worker, title in titles.items() if "ray::Measurer" in title]
        return sorted(found, key=lambda worker: "ray::Measurer.measure" not in titles[worker])

    def connect(self) -> Cluster:
        """Connect as a run does; workers know the kind of work that waits."""
        import ray

        hook = {"worker_process_setup_hook": "waiting_kind.add"}
        ray.init(self.ray.address, runtime_env=hook, log_to_driver=False, logging_level="ERROR")
        return Cluster()

    def log(self, what: str = "begin") -> list[tuple[int, str, float]]:
        """(n_p, machine, seconds) of all points that were begun, or ended."""
        path = self.folder / "measured.log"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(n_p), machine, float(seconds)) for name, n_p, machine, seconds in lines if name == what]


def _started(folder: Path) -> Iterator[Raylets]:
    ray = pytest.importorskip("ray", reason="needs chunkbench[ray]")
    folder.mkdir()
    cluster = Raylets(folder)
    yield cluster
    ray.shutdown()
    with suppress(Exception):  # a test may have killed the head
        cluster.ray.shutdown()


@pytest.fixture
def raylets(tmp_path: Path) -> Iterator[Raylets]:
    """A cluster without nodes."""
    yield from _started(tmp_path / "nodes")


@pytest.fixture(scope="module")
def many_raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Raylets, Fleet]]:
    """A cluster for many tests: the machines a and b of one kind, h of another."""
    for raylets in _started(tmp_path_factory.mktemp("many") / "nodes"):
        raylets.add("a:A100", "b:A100", "h:H100")
        yield raylets, fleet_of(raylets, RecordingListener())


@pytest.fixture
def many(many_raylets: tuple[Raylets, Fleet]) -> tuple[Raylets, Fleet]:
    """The same, as if nothing had been measured there."""
    raylets, fleet = many_raylets
    for path in raylets.folder.iterdir():
        path.unlink()
    (raylets.folder / "seconds").write_text("0.3")
    return raylets, fleet


@pytest.fixture(scope="module", autouse=True)
def _no_other_test_knows_the_kind() -> Iterator[None]:
    """Messages list the kinds of work: those of other tests must not depend on where these tests ran."""
    yield
    workload._workloads.pop("waiting", None)


def command(*words: str, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """`chunkbench` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "chunkbench", *words], cwd=folder, env=os.environ | variables,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def waiting(folder: Path, points: int) -> Experiment:
    """An experiment of so many points that waits."""
    import waiting_kind

    waiting_kind.add()
    path = folder / "waiting.yaml"
    path.write_text(EXPERIMENT % ", ".join(str(16 * (1 + number)) for number in range(points)))
    return load_experiment(path)


def fleet_of(raylets: Raylets, listener: RecordingListener) -> Fleet:
    """The machines of a cluster."""
    cluster = raylets.connect()
    return Fleet(cluster, cluster.nodes(None, listener.problem), False, listener.texts.append)


def executor_of(fleet: Fleet, experiment: Experiment, machines: Machines = "any", silent_s: float = 60.0) -> Executor:
    """An executor that does not wait long for machines to join. On a busy host a live one may be silent for seconds."""
    return RayExecutor(fleet, experiment, machines, None, patience=Patience(silent_s, nodes_s=3.0))


def measure(
    experiment: Experiment, executor: Executor, out: Path, listener: RecordingListener, resume: bool = False
) -> RunOutcome:
    """Run an experiment on a cluster."""
    return run_experiment(experiment, executor, out, resume, [], listener)


def measure_once(fleet: Fleet, points: int, folder: Path, listener: RecordingListener, silent_s: float = 60.0) -> Run:
    """Run an experiment of so many points that waits; afterwards every point has its row."""
    experiment = waiting(folder, points)
    outcome = measure(experiment, executor_of(fleet, experiment, silent_s=silent_s), folder / "run", listener)
    keys_once(outcome.run, points)
    return outcome.run


def keys_once(run: Run, points: int) -> None:
    """Every point has its row, and no row is there twice."""
    lines = (run.path / "cases.jsonl").read_text().splitlines()
    assert len(lines) == points
    assert set(Counter(case.key for case in run.cases).values()) == {1}
    assert len(run.cases) == points
