"""`chunkbench run`, `reproduce` and `demo`."""

from __future__ import annotations

import json
import shlex
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner import reproduce
from chunkbench.bench.runner import run as runner
from chunkbench.bench.runner.passes import RunOptions
from chunkbench.bench.runner.reproduce import EXPERIMENTS, KERNELS, within
from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.run_error import RunError
from tests.command import chunkbench
from tests.conftest import MISSING

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
with_servers = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is not installed")


def command(*words: str, code: int = 0, **environment: str) -> str:
    """What a command printed that ended with this exit code."""
    done = CliRunner().invoke(cli, words, env=environment, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


run, reproduced = partial(command, "run"), partial(command, "reproduce")


@without_gpu
@pytest.mark.parametrize("name", ["table3", "figure3", "figure4"])
def test_a_dry_run_works_without_a_gpu(name: str) -> None:
    printed = run(name, "--device", "cuda", "--dry-run")
    assert "on cuda in float16" in printed
    assert "PyTorch sees no NVIDIA GPU here" in printed
    assert "each point: cold events, cold graph, cold eager" in printed
    assert "memory: up to" in printed
    assert "checks take some 10 s more for each point" in printed


@without_gpu
def test_a_run_without_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="device: cuda cannot be used: PyTorch "):  # main() makes exit code 2 of it
        run("smoke", "--device", "cuda", "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_modes_and_caches_are_chosen_on_the_command_line() -> None:
    printed = run("table3", "--device", "cuda", "--dry-run", "--modes", "graph,events", "--caches", "cold,warm")
    assert "each point: cold graph, cold events, warm graph, warm events" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table3", "--modes", "graphs"), "'graphs' is none of eager, events, graph"),
        (("table3", "--caches", "hot"), "'hot' is none of cold, warm"),
        (("table3", "--device", "cpu", "--modes", "events"), "a CPU has only the mode eager"),
        (("memory", "--modes", "eager"), "this experiment times nothing"),
        (("smoke", "--retry", "crashed"), "--retry needs --resume"),
        (("smoke", "--resume", "--retry", "slow"), "'slow' is none of noisy, incorrect"),
        (("smoke", "--resume", "--retry", ""), "'' is none of"),
        (("smoke", "--resume", "--retry", "ok"), "'ok' is none of"),
    ],
)
def test_impossible_choices_are_wrong_usage(words: tuple[str, ...], message: str) -> None:
    assert message in run(*words, "--dry-run", code=2)


class InterruptedRun:
    """A run of which a report is interrupted, too."""

    cases = (object(),)

    def __getattr__(self, name: str) -> None:
        raise KeyboardInterrupt


def test_a_second_interrupt_still_prints_the_command_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retried: list[object] = []

    def interrupted(*arguments: object) -> SimpleNamespace:
        retried.extend(argument.retry for argument in arguments if isinstance(argument, RunOptions))
        return SimpleNamespace(run=InterruptedRun(), interrupted=True)

    monkeypatch.setattr(runner, "run_experiment", interrupted)
    words = ["run", "smoke", "--out", str(tmp_path / "run"), "--retry", "crashed, noisy", "--resume"]
    done = chunkbench(*words)
    assert done.code == 130
    assert retried == [{"crashed", "noisy"}]
    assert shlex.join(["chunkbench", *words]) in done.stderr


TIMED = """\
name: {name}
title: a small one
dtype: float32
implementations: [naive, chunk_attn]
budget: 100ms
max_rounds: 3
defaults: {{n_c: 2, batch_size: 2, heads: 2, head_dim: 32, chunk_size: 16}}
sweep:
  - {{n_p: 32, n_s: [0, 32]}}
"""


def small_experiments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the paper's experiments by two small ones; returns the folder for their runs."""
    for name in ("first", "second"):
        (folder / f"{name}.yaml").write_text(TIMED.format(name=name))
    monkeypatch.setattr(reproduce, "EXPERIMENTS", (str(folder / "first.yaml"), str(folder / "second.yaml")))
    return folder / "out"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return small_experiments(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the runs, and what the command printed."""
    with pytest.MonkeyPatch.context() as patched:
        out = small_experiments(tmp_path_factory.mktemp("once"), patched)
        return out, reproduced("--out", str(out))


@pytest.fixture
def measured(small: Path, once: tuple[Path, str]) -> Path:
    """A copy of the runs, which a test may change."""
    return shutil.copytree(once[0], small)


def interrupt_second(measured: Path) -> None:
    manifest = measured / "second" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"interrupted": false', '"interrupted": true'))


def test_all_experiments_run_once_and_make_one_report(measured: Path, once: tuple[Path, str]) -> None:
    assert "timed claims" in once[1]
    assert "[2/2] second" in once[1]
    page = (measured / "report.html").read_text()
    assert 'href="first/cases.jsonl"' in page
    assert "chunkbench run" in page
    assert (measured / "report.md").read_text().count("# a small one") == 2
    started = [open_run(measured / name).manifest.started_at for name in ("first", "second")]
    assert reproduced("--out", str(measured)).count("already measured") == 2
    assert [open_run(measured / name).manifest.started_at for name in ("first", "second")] == started


def test_an_interrupted_run_is_resumed(measured: Path) -> None:
    cases = measured / "second" / "cases.jsonl"
    lines = cases.read_text().splitlines(keepends=True)
    cases.write_text("".join(lines[:2]))
    interrupt_second(measured)
    reproduced("--out", str(measured), "-q")
    first, second = (open_run(measured / name).cases for name in ("first", "second"))
    assert [case.key for case in second[:2]] == [case.key for case in first[:2]]
    assert len(second) == 4
    assert cases.read_text().splitlines(keepends=True)[:2] == lines[:2]


def test_an_unfinished_run_of_another_experiment_is_refused(measured: Path, tmp_path: Path) -> None:
    interrupt_second(measured)
    (tmp_path / "second.yaml").write_text(TIMED.format(name="second").replace("n_c: 2", "n_c: 3"))
    assert "choose another folder with --out" in reproduced("--out", str(measured), "-q", code=2)


def test_an_experiment_that_cannot_run_here_is_left_out(measured: Path, tmp_path: Path) -> None:
    shutil.rmtree(measured / "first")
    (tmp_path / "first.yaml").write_text(
        "name: first\nkind: serving\nimplementations: [vllm]\nbaseline: vllm\n"
        "defaults: {n_p: 64, n_c: 2}\nsweep:\n  - {n_s: 0, load: 50}\n"
    )
    printed = reproduced("--out", str(measured), CHUNKBENCH_VLLM_PYTHON=str(tmp_path / "no-python"))
    assert "left out: " in printed
    assert "pip install" in printed or "CHUNKBENCH_VLLM_PYTHON names no file" in printed
    assert not (measured / "first" / "cases.jsonl").read_text()
    assert "second: already measured" in printed


def test_budgets_keep_their_proportion_and_unknown_names_are_refused() -> None:
    experiments = [load_experiment(name) for name in EXPERIMENTS]
    scaled = within(experiments, 600)
    assert sum(experiment.budget_s for experiment in scaled) == pytest.approx(600)
    assert scaled[2].budget_s / scaled[0].budget_s == pytest.approx(experiments[2].budget_s / experiments[0].budget_s)
    # The default budgets leave time for set-up and preparation within half an hour.
    assert sum(experiment.budget_s for experiment in experiments if experiment.name in KERNELS) <= 25 * 60
    assert "no experiment 'table9'; did you mean table4?" in reproduced("--only", "table9", code=2)


@with_servers
def test_both_sides_of_a_demo_give_the_same_answers_and_sharing_computes_less() -> None:
    from chunkbench.cli.demo import USERS, _answer, _output
    from chunkbench.report.formats import render
    from chunkbench.server.engine import Engine, EngineOptions, Request
    from tests.server.engine.models import small_model

    shared = [3 * token % 300 for token in range(128)]
    prompts = [[*shared, 7, user] for user in range(USERS)]
    sides = []
    for name, attention in (("without sharing", "no-sharing"), ("with sharing", "two-phase")):
        options = EngineOptions(USERS, kv_bytes=1 << 24, attention=attention)  # type: ignore[arg-type]
        requests = [Request(str(user), prompt, 5) for user, prompt in enumerate(prompts, 1)]
        sides.append(_answer(name, Engine(small_model(), options), requests))
    assert [side.computed_tokens for side in sides] == [USERS * 130, 128 + USERS * 2]
    assert sides[0].kv_bytes > 2 * sides[1].kv_bytes
    quiet = {"steal_fraction": 0.0, "foreign_cpus": 0.0, "load_average": 0.0}
    text = render(_output(sides, prompts, "why?", "because", quiet), "table")
    assert f"the same answers: {USERS} of {USERS}" in text
    assert "prompt tokens computed              2,080           160  13.0x" in text
    assert "Question: why?" in text
    assert "noisy" not in text
    busy = _output(sides, prompts, "why?", "because", quiet | {"foreign_cpus": 1.2})
    assert "other processes kept 1.2 CPUs busy" in render(busy, "table")


@with_servers
@pytest.mark.slow
@pytest.mark.serial
def test_a_demo() -> None:
    facts = json.loads(chunkbench("demo", "--format", "json").stdout)
    assert facts["same_answers"] == facts["users"]
    without, shared = facts["sides"]
    assert without["computed_prompt_tokens"] > 8 * shared["computed_prompt_tokens"]
