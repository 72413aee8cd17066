"""`chunkbench validate`: exit codes, summaries, problems, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.cli.validate import command

BAD = "implementations: naive\nsed: 1\nsweep: [{n_p: 64, n_s: 65}]\n"


@pytest.fixture
def bad(tmp_path: Path) -> str:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    return str(file)


def test_valid_files_have_one_line_each() -> None:
    result = CliRunner().invoke(command, ["table3", "smoke"])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "table3: valid, 12 points, 120 cases",
        "smoke: valid, 10 points, 230 cases",
    ]
    assert CliRunner().invoke(command, ["table3", "-q"]).output == ""


def test_every_problem_of_every_file_is_printed(bad: str) -> None:
    result = CliRunner().invoke(command, [bad, "table3", "nowhere.yaml", "-q"])
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.removeprefix(bad)[:5] for line in lines[:3]] == [":1:1:", ":2:1:", ":3:24"]
    assert lines[3].startswith("nowhere.yaml: no such file")
    assert len(lines) == 4


def test_json(bad: str) -> None:
    result = CliRunner().invoke(command, ["--format", "json", "table3", bad])
    assert result.exit_code == 2
    good, wrong = json.loads(result.stdout)
    assert good == {"file": "table3", "valid": True, "points": 12, "cases": 120, "problems": []}
    assert wrong["valid"] is False
    assert wrong["problems"][1] == {
        "path": bad, "line": 2, "column": 1, "key": "sed", "message": "unknown key; did you mean seed?",
    }  # fmt: skip


def test_schema() -> None:
    result = CliRunner().invoke(command, ["--schema"])
    assert result.exit_code == 0
    assert "sweep" in json.loads(result.output)["properties"]


@pytest.mark.parametrize("arguments", [[], ["--schema", "table3"], ["--format", "xml", "table3"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2
