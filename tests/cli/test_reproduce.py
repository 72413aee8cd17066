"""`chunkbench reproduce` on two small experiments: it measures, resumes, reports and refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner import reproduce
from chunkbench.bench.runner.reproduce import EXPERIMENTS, KERNELS, within
from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli

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


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, ["reproduce", *words], catch_exceptions=False)


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
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder of the runs, and what the command printed."""
    with pytest.MonkeyPatch.context() as patched:
        out = small_experiments(tmp_path_factory.mktemp("once"), patched)
        return out, call("--out", str(out))


@pytest.fixture
def measured(small: Path, once: tuple[Path, Result]) -> Path:
    """A copy of the runs, which a test may change."""
    return shutil.copytree(once[0], small)


def test_all_experiments_run_once_and_make_one_report(measured: Path, once: tuple[Path, Result]) -> None:
    done = once[1]
    assert done.exit_code == 0, done.output
    assert "claims: " in done.output
    assert "[2/2] second" in done.output
    page = (measured / "report.html").read_text()
    assert 'href="first/cases.jsonl"' in page
    assert "chunkbench run" in page
    assert (measured / "report.md").read_text().count("# a small one") == 2
    started = [open_run(measured / name).manifest.started_at for name in ("first", "second")]
    repeated = call("--out", str(measured))
    assert repeated.exit_code == 0
    assert repeated.output.count("already measured") == 2
    assert [open_run(measured / name).manifest.started_at for name in ("first", "second")] == started


def test_an_interrupted_run_is_resumed(measured: Path) -> None:
    cases = measured / "second" / "cases.jsonl"
    lines = cases.read_text().splitlines(keepends=True)
    cases.write_text("".join(lines[:2]))
    manifest = measured / "second" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"interrupted": false', '"interrupted": true'))
    assert call("--out", str(measured), "-q").exit_code == 0
    assert [case.key for case in open_run(measured / "second").cases][:2] == [
        case.key for case in open_run(measured / "first").cases
    ][:2]
    assert len(open_run(measured / "second").cases) == 4
    assert cases.read_text().splitlines(keepends=True)[:2] == lines[:2]


def test_an_unfinished_run_of_another_experiment_is_refused(measured: Path, tmp_path: Path) -> None:
    manifest = measured / "second" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"interrupted": false', '"interrupted": true'))
    (tmp_path / "second.yaml").write_text(TIMED.format(name="second").replace("n_c: 2", "n_c: 3"))
    refused = call("--out", str(measured), "-q")
    assert refused.exit_code == 2
    assert "choose another folder with --out" in refused.output


def test_an_experiment_that_cannot_run_here_is_left_out(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHUNKBENCH_VLLM_PYTHON", str(tmp_path / "no-python"))
    (tmp_path / "first.yaml").write_text(
        "name: first\nkind: serving\nimplementations: [vllm]\nbaseline: vllm\n"
        "defaults: {n_p: 64, n_c: 2}\nsweep:\n  - {n_s: 0, load: 50}\n"
    )
    done = call("--out", str(small))
    assert done.exit_code == 0, done.output
    assert "left out: " in done.output
    assert "pip install" in done.output or "CHUNKBENCH_VLLM_PYTHON names no file" in done.output
    assert not (small / "first" / "cases.jsonl").read_text()
    assert len(open_run(small / "second").cases) == 4
    assert call("--out", str(small)).exit_code == 0


def test_budgets_keep_their_proportion_and_unknown_names_are_refused() -> None:
    experiments = [load_experiment(name) for name in EXPERIMENTS]
    scaled = within(experiments, 600)
    assert sum(experiment.budget_s for experiment in scaled) == pytest.approx(600)
    assert scaled[2].budget_s / scaled[0].budget_s == pytest.approx(experiments[2].budget_s / experiments[0].budget_s)
    # The default budgets leave time for set-up and preparation within half an hour.
    assert sum(experiment.budget_s for experiment in experiments if experiment.name in KERNELS) <= 25 * 60
    wrong = call("--only", "table9")
    assert wrong.exit_code == 2
    assert "no experiment 'table9'; did you mean table4?" in wrong.output
