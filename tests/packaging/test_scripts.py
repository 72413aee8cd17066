"""Set-up of the documentation and of GPUs: what the scripts do."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from scripts import build_docs as builder
from scripts import gpu_check

ROOT = Path(__file__).parents[2]


def test_links_fit_the_site() -> None:
    readme, page = ROOT / "README.md", ROOT / "docs" / "serving.md"
    assert builder.moved(readme, "docs/regression.md#in-ci") == "regression.md#in-ci"
    assert builder.moved(readme, "docs/images/table3.svg") == "images/table3.svg"
    assert builder.moved(page, "../README.md") == "index.md"
    assert builder.moved(page, "#the-engine") == "#the-engine"
    assert builder.moved(page, "../examples/my-kernel") is None
    assert builder.moved(page, "notes/design.md#the-cache") is None
    assert builder.moved(page, "../../elsewhere") is None


def test_what_comes_from_another_host_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "SITE", tmp_path)
    (tmp_path / "good.html").write_text('<link rel="canonical" href="https://a.example/"><a href="https://b.example">')
    assert builder.loaded_from_elsewhere() == []
    (tmp_path / "bad.html").write_text('<script src="https://c.example/x.js"></script>')
    (tmp_path / "bad.css").write_text("@font-face { src: url(https://d.example/f.woff2) }")
    assert builder.loaded_from_elsewhere() == ["bad.css: https://d.example/f.woff2", "bad.html: https://c.example/x.js"]


def test_every_recorded_machine_has_a_page() -> None:
    folders = {path.name for path in builder.RECORDED.iterdir() if any(path.glob("*/manifest.json"))}
    assert folders == builder.REPORTS.keys()


SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def test_a_checkout_is_importable_without_installation(tmp_path: Path) -> None:
    # -S hides what is installed.
    command = [sys.executable, "-S", "-c", "import chunkbench; print(*chunkbench.__path__)"]
    done = subprocess.run(command, env=gpu_check.checkout(), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == ROOT / "chunkbench"


def test_compiled_at_first_use_lists_the_implementations_that_compile() -> None:
    compiling = gpu_check.compiled_at_first_use(gpu_check.checkout())
    assert compiling == ["flashinfer_cascade", "flashinfer_cascade_fa3", "flashinfer_flat", "flashinfer_paged"]


def test_steps_keep_their_output_and_end_at_their_time_limit(tmp_path: Path) -> None:
    steps = gpu_check.Steps(tmp_path, gpu_check.checkout(), seconds=60)
    assert steps.run("words", [sys.executable, "-c", "print('two words')"], 30) == 0
    assert (tmp_path / "words.txt").read_text() == "two words\n"
    assert steps.run("code", [sys.executable, "-c", "raise SystemExit(3)"], 30) == 3
    assert steps.run("long", [sys.executable, "-c", "import time; time.sleep(60)"], 1) == 124
    assert [(step["step"], step["exit_code"]) for step in steps.done] == [("words", 0), ("code", 3), ("long", 124)]
    assert steps.left_s < 60


@pytest.mark.slow
@pytest.mark.serial
def test_a_rehearsal_does_every_step_and_leaves_one_file_to_send(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--rehearse", "--out", str(tmp_path / "check")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "works here, right against float64: naive" in done.stdout
    assert "  cudnn: unavailable: " in done.stdout
    steps = json.loads((tmp_path / "check" / "steps.json").read_text())
    steps = [step for step in steps if step["step"] != "nvidia-smi"]  # where there is one
    assert [step["step"] for step in steps] == ["first", "doctor", "tests", "table3-gpu", "gpu-kernels"]
    assert steps[0]["seconds"] < 60
    with tarfile.open(tmp_path / "check.tar.gz") as archive:
        names = archive.getnames()
    assert {"check/versions.txt", "check/table3-gpu/cases.jsonl", "check/gpu-kernels/report.html"} <= {*names}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_exits_with_a_message(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "gpu-check: unavailable: PyTorch " in done.stderr
    assert not (tmp_path / "out").exists()
