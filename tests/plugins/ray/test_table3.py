"""A real experiment on a cluster: the rows of a local run, measured by real workers on the nodes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from tests.plugins.ray.conftest import Raylets

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

SMALL = ["--set", "n_p=64,128", "--set", "n_s=0,64", "--set", "n_c=2", "--set", "batch_size=2"]
SMALL += ["--only", "naive", "--only", "chunk_attn", "--dtype", "float32", "--budget", "2s"]


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["run", "table3", *SMALL, *words], standalone_mode=False)
    assert done.exception is None, done.output
    assert (done.return_value or 0) == code, done.output
    return done.output


def test_table3_has_the_keys_of_a_local_run_and_both_kinds_can_be_compared(
    raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raylets.add("a", "b", resources={"accelerator_type:A100": 1})
    raylets.add("h", resources={"accelerator_type:H100": 1})
    monkeypatch.setenv("RAY_ADDRESS", raylets.ray.address)
    run("--out", str(tmp_path / "local"), "-q")
    text = run("--out", str(tmp_path / "ray"), "--on", "ray")
    local, spread = open_run(tmp_path / "local"), open_run(tmp_path / "ray")
    assert Counter(case.key for case in spread.cases) == Counter(case.key for case in local.cases)
    assert {case.machine for case in spread.cases} <= {"a", "b"}
    assert {case.status for case in spread.cases} <= {"ok", "noisy"}
    assert "points by machine: " in text
    assert (tmp_path / "ray" / "figure.png").exists()

    each = tmp_path / "each"
    text = run("--out", str(each), "--on", "ray", "--machines", "each")
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
    done = CliRunner().invoke(cli, ["report", str(each), "--out", str(tmp_path / "both.svg")], standalone_mode=False)
    assert done.exception is None
    assert {path.name for path in tmp_path.glob("*.svg")} == {"both.svg", "both-2.svg"}
    page = (each / "report.html").read_text()
    assert page.count('name="machine"') == 3
    done = CliRunner().invoke(cli, ["compare", str(each), "--between", "machines"], standalone_mode=False)
    assert done.exception is None
    assert "on H100" in done.output
    assert "on A100" in done.output


def test_a_driver_outside_of_the_cluster_measures_through_rays_client(raylets: Raylets, tmp_path: Path) -> None:
    raylets.add("a")
    out = tmp_path / "run"
    run("--out", str(out), "-q", "--on", f"ray://127.0.0.1:{raylets.client_port}")
    recorded = open_run(out)
    assert {case.machine for case in recorded.cases} == {"a"}
    assert {case.status for case in recorded.cases} <= {"ok", "noisy"}
    assert recorded.manifest.machines["a"].kind
