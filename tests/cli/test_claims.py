"""The command `chunkbench claims`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.cli.main import cli

KEYS = ["id", "source", "statement", "quantity", "unit", "verdict", "measured", "low", "high", "paper", "reason"]
KEYS += ["rows", "bound"]


def claims(*words: str) -> str:
    done = CliRunner().invoke(cli, ["claims", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_without_runs_only_claims_about_shapes_and_the_paper_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    judged = json.loads(claims("--format", "json"))
    assert [list(claim) for claim in judged] == [KEYS] * 91
    assert judged[0]["verdict"] == "holds"
    text = claims()
    assert "91 claims: 17 hold, 1 cannot tell, 73 not measured." in text
    assert "chunkbench run table3" in text
    assert claims("--format", "markdown").startswith("# The paper's claims\n")


def test_an_unknown_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["claims", str(tmp_path / "nothing")])
    assert done.exit_code == 2
    assert "no such run directory" in done.output
