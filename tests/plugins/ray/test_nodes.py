"""Which nodes of a cluster a run uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chunkbench.bench.environment import read_environment
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
