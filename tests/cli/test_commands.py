"""Commands with few options: claims, doctor, find-heads, validate; and what shows progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import chunkbench.bench.environment
from chunkbench.bench.environment import Diagnosis
from chunkbench.cli.doctor import command as doctor_command
from chunkbench.cli.main import cli
from chunkbench.cli.progress import RepeatProgress, RunProgress
from chunkbench.cli.validate import command as validate_command
from tests.server.engine.models import write_checkpoint

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


FINE = Diagnosis(level="ok", title="torch", detail="2.13.0")
BAD = Diagnosis(level="warn", title="xformers", detail="missing", remedy="pip install 'chunkbench[xformers]'")
WORSE = Diagnosis(level="error", title="results", detail="cannot be written", remedy="run --out DIR")


def run(monkeypatch: pytest.MonkeyPatch, findings: list[Diagnosis], *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(chunkbench.bench.environment, "diagnose", lambda: findings)
    result = CliRunner().invoke(doctor_command, arguments)
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


def run_of_find_heads(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["find-heads", *map(str, words)], catch_exceptions=False)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no folder of a checkpoint"),
        (["small-llama"], "has random weights here"),
        (["small-llama", "--out", "heads.png"], "the picture is written beside them"),
        (["small-llama", "--out", "/nowhere/heads.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_searched_is_refused_at_once(words: list[str], message: str) -> None:
    code, output = run_of_find_heads(*words)
    assert code == 2
    assert message in output


def test_a_checkpoint_is_searched(tmp_path: Path) -> None:
    folder = write_checkpoint("llama-grouped", tmp_path / "tiny")
    out = tmp_path / "heads.json"
    assert run_of_find_heads(folder, "--tokens", 5000, "--out", out)[0] == 2  # more than it has positions for
    code, output = run_of_find_heads(folder, "--tokens", 40, "--dtype", "float32", "--out", out)
    assert code == 0, output
    assert "tiny: 1 of 4 KV heads are retrieval heads (40 tokens, 4 times)" in output or "2 of 4 KV heads" in output
    assert len(json.loads(out.read_text())["echo"]) == 2
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


UNKNOWN_KEY = "implementations: naive\nsed: 1\nsweep: [{n_p: 64, n_s: 65}]\n"


@pytest.fixture
def bad(tmp_path: Path) -> str:
    file = tmp_path / "bad.yaml"
    file.write_text(UNKNOWN_KEY)
    return str(file)


def test_valid_files_have_one_line_each() -> None:
    result = CliRunner().invoke(validate_command, ["table3", "smoke"])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "table3: valid, 12 points, 120 cases",
        "smoke: valid, 10 points, 230 cases",
    ]
    assert CliRunner().invoke(validate_command, ["table3", "-q"]).output == ""


def test_every_problem_of_every_file_is_printed(bad: str) -> None:
    result = CliRunner().invoke(validate_command, [bad, "table3", "nowhere.yaml", "-q"])
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.removeprefix(bad)[:5] for line in lines[:3]] == [":1:1:", ":2:1:", ":3:24"]
    assert lines[3].startswith("nowhere.yaml: no such file")
    assert len(lines) == 4


def test_json_validate(bad: str) -> None:
    result = CliRunner().invoke(validate_command, ["--format", "json", "table3", bad])
    assert result.exit_code == 2
    good, wrong = json.loads(result.stdout)
    assert good == {"file": "table3", "valid": True, "points": 12, "cases": 120, "problems": []}
    assert wrong["valid"] is False
    assert wrong["problems"][1] == {
        "path": bad, "line": 2, "column": 1, "key": "sed", "message": "unknown key; did you mean seed?",
    }  # fmt: skip


def test_schema() -> None:
    result = CliRunner().invoke(validate_command, ["--schema"])
    assert result.exit_code == 0
    assert "sweep" in json.loads(result.output)["properties"]


@pytest.mark.parametrize("arguments", [[], ["--schema", "table3"], ["--format", "xml", "table3"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(validate_command, arguments).exit_code == 2


@pytest.mark.parametrize("kind", [RunProgress, RepeatProgress])
def test_problems_are_told_also_when_progress_is_not(
    kind: type[RunProgress | RepeatProgress], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = kind(quiet=True)
    progress.started(Path("somewhere/1"), 3, 0)
    progress.problem("a machine was lost")
    assert capsys.readouterr() == ("", "a machine was lost\n")
