"""`chunkbench run` on GPUs, and interrupted."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner, Result

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner import run as runner
from chunkbench.bench.runner.passes import RunOptions
from chunkbench.cli.main import cli
from chunkbench.cli.run import command
from chunkbench.report import build as report
from chunkbench.run_error import RunError

ROOT = Path(__file__).parents[2]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["run", *words])


@without_gpu
@pytest.mark.parametrize("name", ["table3", "figure3", "figure4"])
def test_a_dry_run_works_without_a_gpu(name: str) -> None:
    done = run(str(ROOT / "experiments" / f"{name}.yaml"), "--device", "cuda", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "on cuda in float16" in done.output
    assert "PyTorch sees no NVIDIA GPU here" in done.output
    assert "each point: cold events, cold graph, cold eager" in done.output
    assert "memory: up to" in done.output
    assert "checks take some 10 s more for each point" in done.output


@without_gpu
def test_a_run_without_a_gpu_is_refused(tmp_path: Path) -> None:
    done = run("smoke", "--device", "cuda", "--out", str(tmp_path / "run"))
    assert isinstance(done.exception, RunError), "main() turns this error into exit code 2"
    assert "device: cuda cannot be used: PyTorch " in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_modes_and_caches_are_chosen_on_the_command_line() -> None:
    done = run("table3", "--device", "cuda", "--dry-run", "--modes", "graph,events", "--caches", "cold,warm")
    assert done.exit_code == 0, done.output
    assert "each point: cold graph, cold events, warm graph, warm events" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table3", "--modes", "graphs"), "'graphs' is none of eager, events, graph"),
        (("table3", "--caches", "hot"), "'hot' is none of cold, warm"),
        (("table3", "--device", "cpu", "--modes", "events"), "a CPU has only the mode eager"),
        (("memory", "--modes", "eager"), "this experiment times nothing"),
    ],
)
def test_impossible_modes_and_caches_are_wrong_usage(words: tuple[str, ...], message: str) -> None:
    done = run(*words, "--dry-run")
    assert done.exit_code == 2
    assert message in done.output


def test_a_cpu_has_the_mode_eager_and_a_gpu_has_all_modes_of_the_file(tmp_path: Path) -> None:
    experiment = load_experiment("table3")
    for device, modes in (("cpu", {"eager"}), ("cuda", {"events", "graph", "eager"})):
        (point, *_) = experiment.model_copy(update={"device": "auto"}).points(device, "float16")  # type: ignore[arg-type]
        assert {case.mode for case in experiment.cases(point)} == modes
    memory = load_experiment("memory")
    (point, *_) = memory.points("cuda", "float16")
    assert {case.mode for case in memory.cases(point)} == {"eager"}, "this experiment times nothing"
    (tmp_path / "one.yaml").write_text(
        "implementations: [naive]\nbaseline: naive\nmodes: graph\nsweep:\n  - {n_p: 8, n_s: 0}\n"
    )
    graph_only = load_experiment(tmp_path / "one.yaml")
    (point,) = graph_only.points("cuda", "float16")
    assert [case.mode for case in graph_only.cases(point)] == ["graph"]


def test_a_second_interrupt_still_prints_the_command_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def interrupted_build(run: object) -> None:
        asked.append(run)
        raise KeyboardInterrupt

    outcome = SimpleNamespace(run=SimpleNamespace(cases=[object()]), interrupted=True)
    monkeypatch.setattr(runner, "run_experiment", lambda *_: outcome)
    monkeypatch.setattr(report, "build", interrupted_build)
    words = ["run", "smoke", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["chunkbench", *words])
    result = CliRunner().invoke(command, words[1:])
    assert result.exit_code != 0
    assert asked == [outcome.run]
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
