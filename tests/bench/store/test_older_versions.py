"""Runs of older schema versions: keys stay valid, results have their kind's own fields, and runs can be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.bench import workload
from chunkbench.bench.experiment.point import Case
from chunkbench.bench.experiment.style import Style
from chunkbench.bench.store import SCHEMA_VERSION, Calibration, DecodeResult, Manifest, TimedResult, open_run
from chunkbench.cli.main import cli
from chunkbench.workloads.replay.result import ReplayResult
from chunkbench.workloads.serving.result import ServerFacts
from tests.workloads.replay.made import replay_facts

RECORDED = Path(__file__).parents[3] / "results" / "recorded"
RUNS = sorted(path.parent for path in RECORDED.glob("*/*/manifest.json"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_keys_of_recorded_runs_are_those_of_their_points(path: Path) -> None:
    run = open_run(path)
    kind = workload.get(run.manifest.experiment.kind)
    for result in run.cases:
        # A result has the number of threads that was used; a point that swept no threads has none.
        point = kind.point.from_json(result.model_dump() | {"threads": None})
        timing = (result.protocol, result.cache, result.mode) if isinstance(result, TimedResult) else ()
        assert Case(point, result.implementation, *timing).key == result.key
        assert type(result).model_fields.keys() >= kind.point.model_fields.keys()


def in_this_version(path: Path, folder: Path) -> Path:
    """A copy of a run as this version writes it."""
    run = open_run(path)
    manifest = json.loads((path / "manifest.json").read_text()) | {"schema_version": SCHEMA_VERSION}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "cases.jsonl").write_text("".join(case.model_dump_json() + "\n" for case in run.cases))
    return folder


@pytest.mark.parametrize("name", ["epyc-zen3-2-cores/no-tpp", "epyc-zen3-2-cores/memory", "replays/replay-caches"])
def test_runs_of_two_schema_versions_can_be_compared(name: str, tmp_path: Path) -> None:
    old = RECORDED / name
    new = in_this_version(old, tmp_path)
    assert open_run(new).cases == open_run(old).cases
    metric = ["--metric", "kv_bytes"] if name.endswith("memory") else []
    done = CliRunner().invoke(cli, ["compare", str(old), str(new), *metric], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "slower" not in done.output.split("\n")[0]


def test_a_run_of_another_version_is_not_resumed(tmp_path: Path) -> None:
    for file in ("manifest.json", "cases.jsonl"):
        (tmp_path / file).write_bytes((RECORDED / "epyc-zen3-2-cores" / "no-tpp" / file).read_bytes())
    done = CliRunner().invoke(cli, ["run", "no-tpp", "--out", str(tmp_path), "--resume", "-q"])
    assert done.exit_code != 0
    assert "chunkbench itself has changed since the run was started" in str(done.exception)


def test_facts_are_read_by_their_former_names(facts) -> None:
    times = {"arithmetic_us": 60.0, "memory_us": 9.0}
    values = facts(calibration=(times,) * 3).model_dump()
    former = values | {"yardsticks": values["calibration"]}
    del former["calibration"]
    assert DecodeResult.model_validate_json(json.dumps(former)).calibration == (Calibration(**times),) * 3
    assert DecodeResult.from_older(former)["calibration"]
    server = ServerFacts.model_validate_json('{"sampled": false, "own_s": 0.25}')
    assert (server.overhead_s, server.tree_s) == (0.25, None)


def test_manifests_are_read_by_their_former_names() -> None:
    manifest = Manifest.model_validate({"schema_version": 8, "looks": {"naive": {"place": 7, "line": "dashed"}}})
    assert manifest.styles == {"naive": Style(column_order=7, line="dashed")}


def test_replays_of_answers_without_a_clock_are_read() -> None:
    """They told what answers share as `forks`, and had no replay."""
    line = replay_facts("paged", "replay-forks", traffic="alpaca", samples=2).model_dump()
    line |= {"us_per_token": (), "replays": (), "forks": {"saved": 0.06, "prompt_share": 0.12}}
    read = ReplayResult.model_validate_json(json.dumps(line))
    assert (read.samples, read.replays, read.rounds) == (2, (), ())
