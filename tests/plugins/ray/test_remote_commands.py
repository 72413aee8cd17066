"""Whole commands on nodes: both revisions of `regress` on one node, `tune`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chunkbench.plugins.ray.remote import OUT, _unbundle
from chunkbench.plugins.ray.remote_commands import packed_checkout, run_remote_command
from chunkbench.run_error import RunError
from tests.plugins.ray.conftest import Raylets

pytestmark = pytest.mark.timeout(400)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of two commits, with a changed, a new, a deleted and an ignored file."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    for number in (1, 2):
        (folder / "kept").write_text(f"{number}")
        (folder / "gone").write_text("x")
        (folder / ".gitignore").write_text("ignored\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"{number}")
    (folder / "kept").write_text("changed")
    (folder / "new").write_text("new")
    (folder / "ignored").write_text("ignored")
    (folder / "gone").unlink()
    return folder


def test_a_checkout_travels_with_what_is_not_committed(project: Path, tmp_path: Path) -> None:
    head, base = git(project, "rev-parse", "HEAD"), git(project, "rev-parse", "HEAD~1")
    before = git(project, "status", "--porcelain")
    (tmp_path / "bundle").write_bytes(packed_checkout(project, base))
    _unbundle(tmp_path / "bundle", tmp_path / "there")
    there = tmp_path / "there"
    assert git(there, "rev-parse", "HEAD") == head
    assert git(there, "cat-file", "-t", base) == "commit"
    assert git(there, "status", "--porcelain") == before == git(project, "status", "--porcelain")
    assert (there / "kept").read_text() == "changed"
    assert not (there / "ignored").exists()
    assert git(project, "for-each-ref") == f"{head} commit\trefs/heads/{git(project, 'branch', '--show-current')}"


def test_a_folder_without_commits_cannot_travel(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="git rev-parse"):
        packed_checkout(tmp_path, "HEAD")


@pytest.mark.cluster
@pytest.mark.slow
def test_a_command_runs_on_a_node_among_its_files(raylets: Raylets, tmp_path: Path) -> None:
    raylets.add("a")
    cluster = raylets.connect()
    (node,) = cluster.nodes(None, print)
    logged: list[str] = []
    spec = b"implementations: [naive, chunk_attn]\nsweep:\n  - {n_p: 64, n_s: 0}\n"
    done = run_remote_command(cluster, node, ["validate", "mine.yaml"], {"mine.yaml": spec}, None, logged.append)
    assert done.code == 0, done.stderr
    assert "mine" in done.stdout
    words = ["run", "mine.yaml", "--set", "n_c=1", "--budget", "1s", "--out", OUT]
    done = run_remote_command(cluster, node, words, {"mine.yaml": spec}, None, logged.append)
    assert done.code == 0, done.stderr
    done.unpack(tmp_path / "there")
    manifest = json.loads((tmp_path / "there" / "manifest.json").read_text())
    assert list(manifest["machines"]) == ["a"]
    done = run_remote_command(cluster, node, ["run", "nothing.yaml"], {}, None, logged.append)
    assert done.code == 2
    assert "nothing.yaml" in done.stderr


@pytest.mark.cluster
@pytest.mark.slow
def test_tune_says_that_no_node_has_a_gpu(raylets: Raylets, tmp_path: Path) -> None:
    raylets.add("a")
    done = subprocess.run(
        [sys.executable, "-m", "chunkbench", "tune", "--on", "ray", "--out", str(tmp_path / "table.json")],
        env=os.environ | {"RAY_ADDRESS": raylets.ray.address}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "on an NVIDIA GPU alone, and PyTorch sees none on" in done.stderr
    assert not (tmp_path / "table.json").exists()


@pytest.mark.cluster
@pytest.mark.slow
def test_regress_measures_both_revisions_on_a_node(raylets: Raylets, tmp_path: Path) -> None:
    from tests.example_project import committed_example
    from tests.slowed_example import slower_by

    example, out = committed_example(tmp_path, budget="1s"), tmp_path / "out"
    with example.module.open("a") as file:  # changed, and not committed
        file.write(slower_by(19))
    raylets.add("a", env_vars={name: example.environment[name] for name in ("PYTHONPATH",)})
    words = ["regress", "--base", "HEAD", "--processes", "3", "--confidence", "0.5", "--on", "ray", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "chunkbench", *words], cwd=example.path,
        env={**example.environment, "RAY_ADDRESS": raylets.ray.address}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "slower" in done.stdout
    assert (out / "a").is_dir()
