"""Resuming a run: the command that the user gets, and the options that are refused."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from chunkbench import report
from chunkbench.bench.runner import run as runner
from chunkbench.bench.runner.passes import RunOptions
from chunkbench.cli.run import command


def test_a_second_interrupt_still_prints_the_command_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_build(run: object) -> None:
        raise KeyboardInterrupt

    outcome = SimpleNamespace(run=SimpleNamespace(cases=[object()]), interrupted=True)
    monkeypatch.setattr(runner, "run_experiment", lambda *_: outcome)
    monkeypatch.setattr(report, "build", interrupted_build)
    words = ["run", "smoke", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["chunkbench", *words])
    result = CliRunner().invoke(command, words[1:])
    assert result.exit_code != 0
    assert shlex.join(["chunkbench", *words, "--resume"]) in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--retry", "crashed"], "--retry needs --resume"),
        (["--resume", "--retry", "slow"], "'slow' is none of noisy, incorrect"),
        (["--resume", "--retry", ""], "'' is none of"),
        (["--resume", "--retry", "ok"], "'ok' is none of"),
    ],
)
def test_statuses_to_retry_are_checked(words: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["smoke", *words])
    assert result.exit_code == 2
    assert message in result.stderr


def test_statuses_to_retry_reach_the_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retried = []

    def run_experiment(*arguments: object) -> SimpleNamespace:
        retried.extend(argument.retry for argument in arguments if isinstance(argument, RunOptions))
        return SimpleNamespace(run=SimpleNamespace(cases=[]), interrupted=False)

    monkeypatch.setattr(runner, "run_experiment", run_experiment)
    words = ["smoke", "--out", str(tmp_path), "--resume", "--retry", "crashed, noisy"]
    CliRunner().invoke(command, words)
    assert retried == [{"crashed", "noisy"}]
