"""Whole commands on the nodes of a cluster, which all tests share."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from chunkbench.bench.store import open_run
from chunkbench.plugins.ray import connection
from chunkbench.plugins.ray.fleet import Fleet
from chunkbench.plugins.ray.remote import OUT
from chunkbench.plugins.ray.remote_commands import run_remote_command
from chunkbench.run_error import RunError
from tests.plugins.ray.conftest import SMALL, Raylets, command

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


def printed(*words: str, **variables: str) -> str:
    done = command(*words, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_table3_has_the_keys_of_a_local_run_and_both_kinds_can_be_compared(
    many: tuple[Raylets, Fleet], tmp_path: Path
) -> None:
    here = {"RAY_ADDRESS": many[0].ray.address}
    printed("run", "table3", *SMALL, "--out", str(tmp_path / "local"), "-q")
    text = printed("run", "table3", *SMALL, "--out", str(tmp_path / "ray"), "--on", "ray", **here)
    local, spread = open_run(tmp_path / "local"), open_run(tmp_path / "ray")
    assert Counter(case.key for case in spread.cases) == Counter(case.key for case in local.cases)
    assert {case.machine for case in spread.cases} <= {"a", "b"}
    assert {case.status for case in spread.cases} <= {"ok", "noisy"}
    assert "points by machine: " in text
    assert (tmp_path / "ray" / "figure.png").exists()

    each = tmp_path / "each"
    text = printed("run", "table3", *SMALL, "--out", str(each), "--on", "ray", "--machines", "each", **here)
    recorded = open_run(each)
    first, second = recorded.by_machine_kind()
    assert {case.key for case in first.cases} == {case.key for case in second.cases}
    assert len(recorded.cases) == 2 * len(first.cases) == 2 * len(local.cases)
    for part in (first, second):
        title = f"{recorded.manifest.experiment.title}, on {part.part}"
        assert title in " ".join(text.split())  # a long title has several lines
    assert "Partial run" not in text
    assert len((each / "table.csv").read_text().splitlines()) == 1 + len(recorded.cases)
    assert {row["machine"] for row in json.loads((each / "report.json").read_text())} >= {"h"}
    assert (each / "report.html").read_text().count('name="machine"') == 3
    printed("report", str(each), "--out", str(tmp_path / "both.svg"))
    assert {path.name for path in tmp_path.glob("*.svg")} == {"both.svg", "both-2.svg"}
    compared = printed("compare", str(each), "--between", "machines")
    assert "on H100" in compared
    assert "on A100" in compared


def test_a_driver_outside_of_the_cluster_measures_through_rays_client(
    many: tuple[Raylets, Fleet], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    printed("run", "table3", *SMALL, "--out", str(out), "-q", "--on", f"ray://127.0.0.1:{many[0].client_port}")
    recorded = open_run(out)
    assert {case.status for case in recorded.cases} <= {"ok", "noisy"}
    for machine in {case.machine for case in recorded.cases}:
        assert recorded.manifest.machines[machine].kind.startswith("A100")


def test_a_command_runs_on_a_node_among_its_files(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    node, logged = many[1].nodes[0], list[str]()
    spec = b"implementations: [naive, chunk_attn]\nsweep:\n  - {n_p: 64, n_s: 0}\n"

    def done_there(*words: str, **files: bytes) -> object:
        named = {name.replace("_", "."): data for name, data in files.items()}
        return run_remote_command(many[1].cluster, node, list(words), named, None, logged.append)

    done = done_there("validate", "mine.yaml", mine_yaml=spec)
    assert done.code == 0, done.stderr
    assert "mine" in done.stdout
    done = done_there("run", "mine.yaml", "--set", "n_c=1", "--budget", "1s", "--out", OUT, mine_yaml=spec)
    assert done.code == 0, done.stderr
    done.unpack(tmp_path / "there")
    manifest = json.loads((tmp_path / "there" / "manifest.json").read_text())
    assert list(manifest["machines"]) == [node.machine]
    done = done_there("run", "nothing.yaml")
    assert done.code == 2
    assert "nothing.yaml" in done.stderr


def test_tune_says_that_no_node_has_a_gpu(many: tuple[Raylets, Fleet], tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    done = command("tune", "--on", "ray", "--out", str(table), RAY_ADDRESS=many[0].ray.address)
    assert done.returncode == 2
    assert "on an NVIDIA GPU alone, and PyTorch sees none on" in done.stderr
    assert not table.exists()


def test_another_revision_is_named_once_for_all_nodes(many: tuple[Raylets, Fleet]) -> None:
    cluster = many[1].cluster
    assert len(cluster.nodes(None, print)) == 3
    with mock.patch.object(connection, "code_digest", return_value="other"), pytest.raises(RunError) as raised:
        cluster.nodes(None, print)
    assert str(raised.value).count("its ChunkBench is another revision") == 3
