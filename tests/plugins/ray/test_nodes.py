"""Which nodes of a cluster a run uses."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkbench.bench.environment import read_environment
from chunkbench.bench.store import open_run
from chunkbench.plugins.ray.fleet import Share
from chunkbench.plugins.ray.nodes import (
    Node,
    Resources,
    Software,
    choose_kinds,
    node_of,
    problem_of,
    same_ids,
)
from chunkbench.run_error import RunError
from tests.plugins.ray.conftest import ON_NODES, Raylets, waiting

HERE = Software("3.11", "0.1", "abc", "2.13.0", native=True)


def answer(**changes: Any) -> dict[str, Any]:
    environment = read_environment().model_dump(mode="json")
    environment["torch"]["version"] = changes.pop("torch", "2.13.0+cpu")
    environment["native"]["built"] = changes.pop("native", True)
    whole = {
        "problem": "",
        "python": "3.11",
        "chunkbench": "0.1",
        "revision": "abc",
        "environment": environment,
        "machine": "m",
    }
    return whole | changes


def node(machine: str, accelerator: str = "", address: str = "10.0.0.1", cores: int = 4) -> Node:
    resources = Resources(machine, address, 4, accelerators=(accelerator,) if accelerator else ())
    made = node_of(resources, answer(machine=machine))
    environment = made.environment
    cpu = environment.cpu.model_copy(update={"model": "Some CPU", "generation": "", "cores": cores})
    return replace(made, environment=environment.model_copy(update={"cpu": cpu, "gpus": ()}))


def test_a_node_with_the_same_software_can_measure() -> None:
    assert problem_of(answer(), HERE) == ""
    assert problem_of(answer(torch="2.13.0+cu128"), HERE) == ""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"problem": "ChunkBench cannot be imported there"}, "cannot be imported"),
        ({"python": "3.12"}, "Python 3.12, this machine 3.11"),
        ({"revision": "other"}, "another revision"),
        ({"torch": "2.12.1"}, "PyTorch 2.12.1, this machine 2.13.0"),
        ({"native": False}, "no native module"),
    ],
)
def test_a_node_with_other_software_says_which(changes: dict[str, Any], told: str) -> None:
    assert told in problem_of(answer(**changes), HERE)


def test_any_chooses_the_kind_of_most_machines() -> None:
    nodes = [node("a", "H100"), node("b", "A100"), node("c", "A100")]
    assert choose_kinds(nodes, "any", None) == ["A100, Some CPU, 4 cores"]


def test_each_chooses_all_kinds() -> None:
    nodes = [node("a", "H100"), node("b", "A100"), node("c", cores=8)]
    assert choose_kinds(nodes, "each", None) == [
        "A100, Some CPU, 4 cores",
        "H100, Some CPU, 4 cores",
        "Some CPU, 8 cores",
    ]


@pytest.mark.parametrize("wanted", ["a100", "b", "A100, some"])
def test_a_machine_is_named_by_part_of_its_kind_or_by_its_id(wanted: str) -> None:
    assert choose_kinds([node("x", "H100"), node("b", "A100")], "any", wanted) == ["A100, Some CPU, 4 cores"]


def test_a_name_that_matches_nothing_lists_what_there_is() -> None:
    with pytest.raises(RunError, match=r"no machine like 'b200'. It has: H100, Some CPU, 4 cores \(a\)"):
        choose_kinds([node("a", "H100")], "any", "b200")


def test_a_name_that_matches_several_kinds_is_refused() -> None:
    with pytest.raises(RunError, match=r"several kinds of machines; name one of them: A100.*; H100"):
        choose_kinds([node("a", "H100"), node("b", "A100")], "any", "Some CPU")


def test_nodes_with_the_same_id_are_named() -> None:
    assert same_ids([node("a"), node("b", address="10.0.0.2")]) == []
    (warning,) = same_ids([node("a"), node("a", address="10.0.0.2")])
    assert "10.0.0.1 and 10.0.0.2 have the same machine id a" in warning


def test_a_cpu_run_takes_the_whole_node() -> None:
    assert Share.of(Resources("n", "", 16, 8, 64.0), "cpu", alone=False) == [Share(16, 0, 64)]


def test_a_gpu_run_measures_every_gpu_of_a_node() -> None:
    assert Share.of(Resources("n", "", 18, 8, 64.0), "cuda", alone=False) == [Share(2, 1, 8)] * 8


def test_alone_a_gpu_run_takes_all_gpus_of_the_node() -> None:
    assert Share.of(Resources("n", "", 18, 8, 64.0), "cuda", alone=True) == [Share(18, 8, 64)]


def test_a_node_has_no_more_shares_than_cpus() -> None:
    assert Share.of(Resources("n", "", 2, 8, 0.0), "cuda", alone=False) == [Share(1, 4, 0)] * 2


def test_what_ray_says_of_a_node() -> None:
    told = {
        "NodeID": "abcdef123",
        "NodeManagerAddress": "10.0.0.7",
        "Resources": {"CPU": 4.0, "GPU": 2.0, "memory": 1e9, "accelerator_type:A100": 1.0, "node:10.0.0.7": 1.0},
    }
    assert Resources.of(told) == Resources("abcdef123", "10.0.0.7 (abcdef)", 4, 2, 1e9, ("A100",))


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


@pytest.mark.cluster
@pytest.mark.slow
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
    for _ in range(KILLS):
        resume = ["--resume"] if (run / "manifest.json").exists() else []
        driver = subprocess.Popen([*words, *resume], env=environment, start_new_session=True)
        moments.append(rng.uniform(0.5, 8.0))
        time.sleep(moments[-1])
        assert driver.poll() is None, "the run ended before it was killed"
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        time.sleep(rng.uniform(0, 1.0))
    resume = ["--resume"] if (run / "manifest.json").exists() else []
    done = subprocess.run([*words, *resume], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"killed after {moments}: {done.stderr}"
    recorded = open_run(run)
    assert len((run / "cases.jsonl").read_text().splitlines()) == POINTS
    assert set(Counter(case.key for case in recorded.cases).values()) == {1}
    assert len(recorded.cases) == POINTS
    assert recorded.manifest.interrupted is False
