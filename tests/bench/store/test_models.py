"""The models of facts and manifests refuse values of the wrong type, range or length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chunkbench import workloads
from chunkbench.bench import workload
from chunkbench.bench.experiment.terms import Style
from chunkbench.bench.store import Calibration, DecodeResult, Manifest, open_run
from chunkbench.cli.main import cli
from chunkbench.run_error import RunError
from chunkbench.workloads.replay.result import ReplayResult
from chunkbench.workloads.serving.result import ServerFacts
from tests.workloads.made import replay_facts


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"samples_us": [[1.0, 2.0]]}, "does not have one sample for each of the 1 steps"),
        ({"samples_us": [[0.0]]}, "greater than 0"),
        ({"samples_us": [[float("inf")]]}, "finite number"),
        ({"groups": []}, "groups has 0 entries for 1 rounds"),
        ({"peaks": [{}]}, "peaks.0.read_bytes_per_s"),
        ({"calibration": [{"arithmetic_us": 1.0}] * 2}, "calibration has 2 entries for 1 rounds"),
        ({"flops": [1, 2]}, "flops has 2 entries for 1 steps"),
        ({"kv_bytes": -1}, "kv_bytes"),
        ({"steps": [0]}, "steps.0"),
    ],
)
def test_facts_that_do_not_fit_are_refused(facts, changes: dict[str, Any], what: str) -> None:
    one_round = {"samples_us": [[1.0]], "steps": [1], "groups": [0], "peaks": (), "calibration": (), "flops": ()}
    values = facts(samples_us=()).model_dump() | one_round | {"unique_bytes": (), "read_bytes": ()}
    DecodeResult(**values)
    with pytest.raises(ValueError, match=what):
        DecodeResult(**values | changes)


@pytest.mark.parametrize(
    "change",
    [
        {"experiment": 3},
        {"experiment": {"kind": "nothing"}},
        {"git": {"commit": ["a"]}},
        {"machines": {"m": {"gpus": [{}]}}},
        {"points": -1},
        {"title\ud800": 1},
    ],
)
def test_a_manifest_with_a_wrong_value_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    manifest = {"schema_version": 5, "experiment": {"name": "x"}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert open_run(tmp_path).cases == []
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(RunError, match=r"manifest\.json"):
        open_run(tmp_path)


def test_a_manifest_of_an_old_version_names_its_one_machine() -> None:
    environment = {"cpu": {"model": "AMD EPYC", "cores": 2}, "memory_bytes": 2**34}
    old = Manifest.model_validate({"schema_version": 4, "environment": environment})
    assert old.only_machine
    assert old.machine_names == ("AMD EPYC",)
    assert old.only_machine == Manifest.model_validate({"schema_version": 1, "environment": environment}).only_machine


BOUNDS = {"exclusiveMaximum", "maximum"}


def test_all_whole_numbers_of_a_row_have_a_bound() -> None:
    def unbounded(schema: Any, name: str) -> Iterator[str]:
        members = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
        if isinstance(schema, dict) and schema.get("type") == "integer" and not BOUNDS & schema.keys():
            yield name
        for key, member in members:
            yield from unbounded(member, f"{name}.{key}")

    workloads.register()
    kinds = [kind for kind in workload.all_kinds() if kind.result.__module__.startswith("chunkbench.")]
    assert len(kinds) >= 7
    for kind in kinds:
        assert list(unbounded(kind.result.model_json_schema(), kind.name)) == []


RECORDED = Path(__file__).parents[3] / "results" / "recorded"


def test_a_run_of_another_version_is_not_resumed(tmp_path: Path) -> None:
    for file in ("manifest.json", "cases.jsonl"):
        (tmp_path / file).write_bytes((RECORDED / "epyc-zen3-2-cores" / "no-tpp" / file).read_bytes())
    done = CliRunner().invoke(cli, ["run", "no-tpp", "--out", str(tmp_path), "--resume", "-q"])
    assert done.exit_code != 0
    assert "chunkbench itself has changed since the run was started" in str(done.exception)


def test_facts_and_manifests_are_read_by_their_former_names(facts) -> None:
    times = {"arithmetic_us": 60.0, "memory_us": 9.0}
    values = facts(calibration=(times,) * 3).model_dump()
    former = values | {"yardsticks": values["calibration"]}
    del former["calibration"]
    assert DecodeResult.model_validate_json(json.dumps(former)).calibration == (Calibration(**times),) * 3
    assert DecodeResult.from_older(former)["calibration"]
    server = ServerFacts.model_validate_json('{"sampled": false, "own_s": 0.25}')
    assert (server.overhead_s, server.tree_s) == (0.25, None)
    manifest = Manifest.model_validate({"schema_version": 8, "looks": {"naive": {"place": 7, "line": "dashed"}}})
    assert manifest.styles == {"naive": Style(column_order=7, line="dashed")}


def test_replays_of_answers_without_a_clock_are_read() -> None:
    """They told what answers share as `forks`, and had no replay."""
    line = replay_facts("paged", "replay-forks", traffic="alpaca", samples=2).model_dump()
    line |= {"us_per_token": (), "replays": (), "forks": {"saved": 0.06, "prompt_share": 0.12}}
    read = ReplayResult.model_validate_json(json.dumps(line))
    assert (read.samples, read.replays, read.rounds) == (2, (), ())
