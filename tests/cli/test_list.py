"""`chunkbench list` and `chunkbench completion`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment import bundled_experiments
from chunkbench.bench.registry import Surveyed
from chunkbench.cli.completion import command as completion
from chunkbench.cli.list_ import command


@pytest.fixture
def two_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    no = Answer(False, "xformers has no CPU operator [at all]", "use a GPU")
    states = [Surveyed("chunk_attn", "ChunkAttn", YES), Surveyed("xformers", "xformers", no)]
    monkeypatch.setattr(REGISTRY, "survey", lambda device: states)


def test_experiments() -> None:
    rows = json.loads(CliRunner().invoke(command, ["experiments", "--format", "json"]).output)
    points = {row["experiment"]: row["points"] for row in rows}
    assert points.keys() == set(bundled_experiments())
    assert (points["table1"], points["table3"], points["figure3"], points["smoke"]) == (3, 12, 12, 10)
    assert all(row["title"] for row in rows)


def test_axes_have_meaning_values_and_default() -> None:
    rows = json.loads(CliRunner().invoke(command, ["axes", "--format", "json"]).output)
    shape = "traffic model n_p n_s n_c batch_size prompts tree heads kv_heads head_dim"
    heads = "retrieval window kv_share compensation chunk_size block_size dtype"
    requests = "load rate clients forced memory schedule samples beams ranks phase mask link threads"
    assert " ".join(row["axis"] for row in rows) == f"{shape} {heads} {requests}"
    assert all(row["meaning"] and row["values"] and row["default"] for row in rows)
    table = CliRunner().invoke(command, ["axes"]).output
    assert all(row["axis"] in table for row in rows)


@pytest.mark.usefixtures("two_implementations")
def test_implementations_have_state_reason_and_remedy() -> None:
    rows = json.loads(CliRunner().invoke(command, ["implementations", "--format", "json"]).output)
    assert [(row["implementation"], row["available"]) for row in rows] == [("chunk_attn", True), ("xformers", False)]
    assert rows[1]["reason"] == "xformers has no CPU operator [at all]"
    assert rows[1]["remedy"] == "use a GPU"
    words = CliRunner().invoke(command, ["implementations"]).output.split()
    assert {"ChunkAttn", "yes", "no", "[at", "GPU"} <= set(words)


def test_without_implementations_the_remedy_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY, "survey", lambda device: [])
    assert "make setup" in CliRunner().invoke(command, ["implementations"]).stderr


@pytest.mark.parametrize(
    ("subject", "kind", "has", "lacks"),
    [
        ("experiments", "replay", "replay-paged", "table3"),
        ("implementations", "replay", "radix_tree", "chunk_attn"),
        ("implementations", "serving", "endpoint", "naive"),
        ("implementations", "modules", "mlp", "naive"),
        ("axes", "modules", "model", "n_s"),
    ],
)
def test_only_those_of_a_kind(subject: str, kind: str, has: str, lacks: str) -> None:
    rows = json.loads(CliRunner().invoke(command, [subject, "--kind", kind, "--format", "json"]).output)
    names = [row[subject.rstrip("s").replace("axe", "axis")] for row in rows]
    assert has in names
    assert lacks not in names


def test_an_unknown_kind_is_wrong_usage() -> None:
    done = CliRunner().invoke(command, ["axes", "--kind", "decoding"])
    assert (done.exit_code, "is none of decode, memory" in done.stderr) == (2, True)


def test_unknown_subject_is_wrong_usage() -> None:
    assert CliRunner().invoke(command, ["everything"]).exit_code == 2


@pytest.mark.parametrize(("shell", "mark"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --")])
def test_completion(shell: str, mark: str) -> None:
    group = click.Group("chunkbench", commands={"completion": completion})
    result = CliRunner().invoke(group, ["completion", shell])
    assert result.exit_code == 0
    assert mark in result.output
    assert "_CHUNKBENCH_COMPLETE" in result.output


def test_a_closed_output_gives_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chunkbench", "list", "axes"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
    )
    assert "Traceback" not in done.stderr
