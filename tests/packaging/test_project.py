"""pyproject.toml, the Makefile and the set-up script agree with each other and with the code."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import torch

import chunkbench
from chunkbench.pins import VLLM_CPU_TORCH
from scripts import build_docs as builder
from scripts import gpu_check, set_up

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # If `make test` runs this test, its own flags and level must not reach the inner make.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_version_has_one_source() -> None:
    try:
        assert importlib.metadata.version("chunkbench") == chunkbench.__version__
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("chunkbench is not installed here")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_help_is_the_default_and_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    output = make().stdout
    assert output == make("help").stdout
    described = [line.split()[1] for line in output.splitlines() if line.startswith("  make ")]
    assert sorted(described) == sorted(phony)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_refuses_an_old_python_with_a_remedy(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make(f"PYTHON={old}", f"VENV={tmp_path / 'venv'}", "setup")
    assert done.returncode != 0
    assert "needs Python 3.11 or later" in done.stdout
    assert not (tmp_path / "venv").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_finished_set_up_is_repeated_only_after_a_change_of_its_sources(tmp_path: Path) -> None:
    for stamp in (".ready", ".ready-dev"):
        (tmp_path / stamp).touch()
    for target in ("setup", "format"):
        assert "set_up.py" not in make("-n", f"VENV={tmp_path}", target).stdout
    (tmp_path / ".ready-dev").unlink()
    assert "set_up.py" not in make("-n", f"VENV={tmp_path}", "setup").stdout
    assert "set_up.py" in make("-n", f"VENV={tmp_path}", "format").stdout
    os.utime(tmp_path / ".ready", (0, 0))
    assert "set_up.py" in make("-n", f"VENV={tmp_path}", "setup").stdout


def python_with(folder: Path, torch: str) -> Path:
    """A program that prints this whatever Python code it gets, in an environment of its own."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho '{torch}'\n")
    python.chmod(0o755)
    return python


def test_a_torch_that_is_already_there_replaces_the_pinned_one(tmp_path: Path) -> None:
    assert set_up.limits(tmp_path / "bin" / "python") == ["--constraint", str(set_up.CONSTRAINTS)]
    option, path = set_up.limits(python_with(tmp_path, "2.11.0+cu130"))
    assert option == "--constraint"
    pinned = set_up.CONSTRAINTS.read_text().splitlines()
    replaced = Path(path).read_text().splitlines()
    assert [line for line in replaced if line.startswith("torch")] == ["torch==2.11.0+cu130"]
    assert {line for line in pinned if not line.startswith("torch")} < set(replaced)


@pytest.mark.parametrize(
    ("system", "machine", "torch", "numa", "words"),
    [
        ("Linux", "x86_64", "2.13.0+cpu None", True, ""),
        ("Linux", "x86_64", "2.13.0+cpu None", False, "libnuma1"),
        ("Linux", "x86_64", "2.13.0+cu130 13.0", True, "needs torch 2.13.0 for the CPU"),
        ("Linux", "x86_64", "2.12.1+cpu None", True, "needs torch 2.13.0 for the CPU"),
        ("Linux", "aarch64", "2.13.0 None", True, "is for Linux on x86-64"),
        ("Darwin", "x86_64", "2.13.0 None", True, "is for Linux on x86-64"),
    ],
)
def test_set_up_says_why_vllm_does_not_fit(
    system: str, machine: str, torch: str, numa: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> None:
        if not numa:
            raise OSError(name)

    for name, answer in (
        ("platform.system", lambda: system),
        ("platform.machine", lambda: machine),
        ("ctypes.CDLL", load),
    ):
        monkeypatch.setattr(name, answer)
    why = set_up.why_vllm_does_not_fit(python_with(tmp_path, torch))
    assert words in why
    assert bool(why) == bool(words)


def test_the_pinned_torch_is_the_one_that_vllm_needs() -> None:
    pinned = next(line for line in set_up.CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    assert pinned == f"torch=={VLLM_CPU_TORCH}"


def test_what_set_up_imports_is_compiled_even_if_the_environment_forbids_it(tmp_path: Path) -> None:
    (tmp_path / "imported_by_set_up.py").write_text("")
    program = (
        "import sys; from pathlib import Path; from scripts import set_up; set_up.ROOT = Path(sys.argv[1]);"
        "set_up.IMPORTED = 'import imported_by_set_up'; set_up.compile_imports(Path(sys.executable))"
    )
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=True)
    assert list((tmp_path / "__pycache__").glob("imported_by_set_up.*.pyc"))
    done = subprocess.run([sys.executable, "-c", set_up.IMPORTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("README.md", "docs/regression.md#in-ci", "regression.md#in-ci"),
        ("README.md", "docs/images/table3.svg", "images/table3.svg"),
        ("docs/serving.md", "../README.md", "index.md"),
        ("docs/serving.md", "#the-engine", "#the-engine"),
        ("docs/serving.md", "../examples/my-kernel", None),
        ("docs/serving.md", "notes/design.md#the-cache", None),
        ("docs/serving.md", "../../elsewhere", None),
    ],
)
def test_links_fit_the_site(page: str, link: str, moved: str | None) -> None:
    assert builder.moved(ROOT / page, link) == moved


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
    forms = ("cascade", "cascade_fa3", "flat", "mla", "mla_fa3", "paged")
    assert compiling == [f"flashinfer_{form}" for form in forms]


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
@pytest.mark.timeout(900)
def test_a_rehearsal_does_every_step_and_leaves_one_file_to_send(tmp_path: Path) -> None:
    all_steps = list(dict.fromkeys([*gpu_check.USUAL, *gpu_check.MEASUREMENTS]))
    command = [sys.executable, str(SCRIPT), "--rehearse", "--out", str(tmp_path / "check")]
    command += [part for name in all_steps for part in ("--step", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "works here, right against float64: naive" in done.stdout
    assert "  cudnn: unavailable: " in done.stdout
    steps = json.loads((tmp_path / "check" / "steps.json").read_text())
    steps = [step for step in steps if step["step"] != "nvidia-smi"]  # where there is one
    assert [step["step"] for step in steps] == all_steps
    assert steps[0]["seconds"] < 60
    with tarfile.open(tmp_path / "check.tar.gz") as archive:
        names = archive.getnames()
    assert {"check/versions.txt", "check/table3-gpu/cases.jsonl", "check/mla-gpu/report.html"} <= {*names}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_exits_with_a_message(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "gpu-check: unavailable: PyTorch " in done.stderr
    assert not (tmp_path / "out").exists()
