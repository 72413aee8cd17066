"""Which nodes of a cluster a run uses, and what a command says that cannot use one. No test here starts a cluster."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from chunkbench.bench.environment import read_environment
from chunkbench.plugins.ray.connection import Cluster
from chunkbench.plugins.ray.fleet import Share, shipped
from chunkbench.plugins.ray.nodes import Node, Resources, Software, choose_kinds, node_of, problem_of, same_ids
from chunkbench.plugins.ray.remote import _unbundle
from chunkbench.plugins.ray.remote_commands import packed_checkout
from chunkbench.run_error import RunError
from tests.command import chunkbench, git
from tests.plugins.ray.conftest import command

HERE = Software("3.11", "0.1", "abc", "2.13.0", native=True)


def answer(**changes: Any) -> dict[str, Any]:
    environment = read_environment().model_dump(mode="json")
    environment["torch"]["version"] = changes.pop("torch", "2.13.0+cpu")
    environment["native"]["built"] = changes.pop("native", True)
    whole = {"problem": "", "python": "3.11", "chunkbench": "0.1", "revision": "abc", "machine": "m"}
    return whole | {"environment": environment} | changes


def node(machine: str, accelerator: str = "", address: str = "10.0.0.1", cores: int = 4) -> Node:
    resources = Resources(machine, address, 4, accelerators=(accelerator,) if accelerator else ())
    made = node_of(resources, answer(machine=machine))
    environment = made.environment
    cpu = environment.cpu.model_copy(update={"model": "Some CPU", "generation": "", "cores": cores})
    return replace(made, environment=environment.model_copy(update={"cpu": cpu, "gpus": ()}))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"torch": "2.13.0+cu128"}, ""),
        ({"problem": "ChunkBench cannot be imported there"}, "cannot be imported"),
        ({"python": "3.12"}, "Python 3.12, this machine 3.11"),
        ({"revision": "other"}, "another revision"),
        ({"torch": "2.12.1"}, "PyTorch 2.12.1, this machine 2.13.0"),
        ({"native": False}, "no native module"),
    ],
)
def test_a_node_can_measure_or_says_which_software_differs(changes: dict[str, Any], told: str) -> None:
    problem = problem_of(answer(**changes), HERE)
    assert told in problem
    assert bool(told) == bool(problem)


@pytest.mark.parametrize(
    ("machines", "wanted", "chosen"),
    [
        ("any", None, ["A100, Some CPU, 4 cores"]),  # the kind of most machines
        ("each", None, ["A100, Some CPU, 4 cores", "H100, Some CPU, 4 cores", "Some CPU, 8 cores"]),
        ("any", "h100", ["H100, Some CPU, 4 cores"]),
        ("any", "d", ["Some CPU, 8 cores"]),
        ("any", "A100, some", ["A100, Some CPU, 4 cores"]),
    ],
)
def test_kinds_are_chosen_by_number_by_part_of_their_name_or_by_a_machine(
    machines: Any, wanted: str | None, chosen: list[str]
) -> None:
    nodes = [node("a", "H100"), node("b", "A100"), node("c", "A100"), node("d", cores=8)]
    assert choose_kinds(nodes, machines, wanted) == chosen


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("b200", r"no machine like 'b200'. It has: H100, Some CPU, 4 cores \(a\); A100, Some CPU, 4 cores \(b\)"),
        ("Some CPU", r"several kinds of machines; name one of them: A100.*; H100"),
    ],
)
def test_a_name_that_does_not_say_one_kind_lists_what_there_is(wanted: str, told: str) -> None:
    with pytest.raises(RunError, match=told):
        choose_kinds([node("a", "H100"), node("b", "A100")], "any", wanted)


def test_nodes_with_the_same_id_are_named() -> None:
    assert same_ids([node("a"), node("b", address="10.0.0.2")]) == []
    (warning,) = same_ids([node("a"), node("a", address="10.0.0.2")])
    assert "10.0.0.1 and 10.0.0.2 have the same machine id a" in warning


@pytest.mark.parametrize(
    ("cpus", "gpus", "device", "alone", "shares"),
    [
        (16, 8, "cpu", False, [Share(16, 0, 64)]),
        (18, 8, "cuda", False, [Share(2, 1, 8)] * 8),
        (18, 8, "cuda", True, [Share(18, 8, 64)]),
        (2, 8, "cuda", False, [Share(1, 4, 32)] * 2),  # no more shares than CPUs
    ],
)
def test_what_a_run_takes_of_a_node(cpus: int, gpus: int, device: Any, alone: bool, shares: list[Share]) -> None:
    assert Share.of(Resources("n", "", cpus, gpus, 64.0), device, alone) == shares


def test_what_ray_says_of_a_node() -> None:
    told = {
        "NodeID": "abcdef123",
        "NodeManagerAddress": "10.0.0.7",
        "Resources": {"CPU": 4.0, "GPU": 2.0, "memory": 1e9, "accelerator_type:A100": 1.0, "node:10.0.0.7": 1.0},
    }
    assert Resources.of(told) == Resources("abcdef123", "10.0.0.7 (abcdef)", 4, 2, 1e9, ("A100",))


def test_without_a_cluster_the_message_says_how_to_start_one() -> None:
    pytest.importorskip("ray")
    with pytest.raises(RunError, match=r"no Ray cluster at 127.0.0.1:9: .*`ray start --head`"):
        Cluster("127.0.0.1:9")


def test_a_cluster_that_refuses_may_want_a_token() -> None:
    ray = pytest.importorskip("ray")
    refusal = ConnectionError("Failed to connect to Ray cluster at 127.0.0.1")  # Ray takes half a minute to say so
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        mock.patch.object(ray, "init", side_effect=refusal),
        pytest.raises(RunError, match=r"Failed to connect .*RAY_AUTH_MODE=token"),
    ):
        Cluster(f"127.0.0.1:{server.getsockname()[1]}")


def test_without_ray_the_message_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('no ray')\n")
    done = command("run", "smoke", "--on", "ray", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "pip install 'chunkbench[ray]'" in done.stderr


def test_nothing_is_sent_unless_it_is_wanted() -> None:
    with shipped(False) as runtime:
        assert runtime == {}
    with shipped(True) as runtime:
        folder = Path(runtime["working_dir"])
        assert (folder / "chunkbench" / "cli" / "main.py").is_file()
        (metadata,) = folder.glob("*.dist-info")
        assert "chunkbench = chunkbench.plugins.vllm:register" in (metadata / "entry_points.txt").read_text()
    assert not folder.exists()


@pytest.mark.parametrize("option", [["--machines", "each"], ["--machine", "x"], ["--alone"], ["--ship"], ["--on", "x"]])
def test_options_of_clusters_that_do_not_fit_are_refused(option: list[str]) -> None:
    done = chunkbench("run", "smoke", *option)
    assert done.code == 2
    told = "write local, ray, or ray://HOST:PORT" if "--on" in option else f"{option[0]} belongs to --on ray"
    assert told in done.stderr


def test_a_checkout_travels_with_what_is_not_committed(tmp_path: Path) -> None:
    """It has two commits, and a changed, a new, a deleted and an ignored file."""
    project, there = tmp_path / "project", tmp_path / "there"
    project.mkdir()
    git(project, "init", "-q")
    for number in (1, 2):
        for name, text in {"kept": f"{number}", "gone": "x", ".gitignore": "ignored\n"}.items():
            (project / name).write_text(text)
        git(project, "add", "-A")
        git(project, "commit", "-qm", f"{number}")
    for name in ("kept", "new", "ignored"):
        (project / name).write_text("changed")
    (project / "gone").unlink()

    head, base = git(project, "rev-parse", "HEAD"), git(project, "rev-parse", "HEAD~1")
    before = git(project, "status", "--porcelain")
    (tmp_path / "bundle").write_bytes(packed_checkout(project, base))
    _unbundle(tmp_path / "bundle", there)
    assert git(there, "rev-parse", "HEAD") == head
    assert git(there, "cat-file", "-t", base) == "commit"
    assert git(there, "status", "--porcelain") == before == git(project, "status", "--porcelain")
    assert (there / "kept").read_text() == "changed"
    assert not (there / "ignored").exists()
    assert git(project, "for-each-ref") == f"{head} commit\trefs/heads/{git(project, 'branch', '--show-current')}"


def test_a_folder_without_commits_cannot_travel(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="git rev-parse"):
        packed_checkout(tmp_path, "HEAD")
