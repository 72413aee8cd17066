"""The revision of a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chunkbench.bench.environment import git_state


def git(path: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(path), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_untracked_files_make_a_checkout_dirty_and_ignored_files_do_not(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / "ignored").write_text("")
    assert git_state(checkout) == {"commit": commit, "dirty": False}
    (checkout / "new.py").write_text("")
    assert git_state(checkout) == {"commit": commit, "dirty": True}


def test_a_folder_inside_another_repository_has_no_revision(checkout: Path) -> None:
    (checkout / "site-packages").mkdir()
    assert git_state(checkout / "site-packages") is None


def test_without_a_repository_a_commit_or_git_there_is_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None
