"""The command `chunkbench doctor`: output formats and exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import chunkbench.bench.environment
from chunkbench.bench.environment import Diagnosis
from chunkbench.cli.doctor import command

FINE = Diagnosis(level="ok", title="torch", detail="2.13.0")
BAD = Diagnosis(level="warn", title="xformers", detail="missing", remedy="pip install 'chunkbench[xformers]'")
WORSE = Diagnosis(level="error", title="results", detail="cannot be written", remedy="run --out DIR")


def run(monkeypatch: pytest.MonkeyPatch, findings: list[Diagnosis], *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(chunkbench.bench.environment, "diagnose", lambda: findings)
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, result.output


def test_warnings_show_their_remedy_and_exit_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, [FINE, BAD])
    assert code == 0
    assert "2.13.0" in output
    assert "pip install 'chunkbench[xformers]'" in " ".join(output.split())


def test_an_error_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, [FINE, WORSE])[0] == 2


def test_quiet_hides_findings_that_are_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, [FINE, BAD], "-q")
    assert code == 0
    assert "torch" not in output
    assert "xformers" in output


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, [FINE, WORSE], "--format", "json")
    assert code == 2
    assert [(entry["level"], entry["title"]) for entry in json.loads(output)] == [("ok", "torch"), ("error", "results")]
