"""The revisions that are compared: builds of them, and their parents."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkbench.bench.environment.revision import git_state
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.measure.caches import sweep_file
from chunkbench.bench.runner.client import WorkerProcess
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.store import MEASURED
from chunkbench.cli.progress import RepeatProgress
from chunkbench.report.compare import builds
from chunkbench.report.compare.builds import built_revision, built_working_tree, repository
from chunkbench.report.compare.interleaved import Interleaved, InterleavedJob
from chunkbench.report.compare.sides import Side
from chunkbench.run_error import RunError
from tests.command import git


def committed(path: Path, **files: str) -> Path:
    """A repository with a commit more."""
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.txt").write_text(text)
    if not (path / ".git").exists():
        git(path, "init", "-q")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "files")
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two commits; a submodule, a link to a folder, a hook that leaves a trace, and a file that is new."""
    path = committed(tmp_path / "project", kept="old", gone="old")
    git(path, "submodule", "add", "-q", str(committed(tmp_path / "library", code="1")), "library")
    (path / "data").mkdir()
    (path / "data" / "n.txt").write_text("n")
    (path / "link").symlink_to("data")
    committed(path, kept="middle")
    hook = path / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    (path / "gone.txt").unlink()
    committed(path, kept="committed")
    (path / "kept.txt").write_text("changed")
    (path / "new.txt").write_text("new")
    return path


def test_a_hook_finds_its_index_and_its_files_as_they_were(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git tells hooks its index; what builds a revision must not write into it."""

    def install(source: Path, folder: Path, *_: object) -> Path:
        # Builds ask git for their version, on both sides.
        assert len(git(source, "rev-parse", "HEAD")) == 40
        assert git(source, "ls-files", "kept.txt") == "kept.txt"
        shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git*"))
        return folder

    monkeypatch.setattr(builds, "_install", install)
    other, log = committed(tmp_path / "other", some="file"), tmp_path / "log"
    index, status = (project / ".git" / "index").read_bytes(), git(project, "status", "--porcelain")
    state = git_state(project)
    # The environment of a hook of another repository, with the index of this one.
    hook = {"DIR": other / ".git", "WORK_TREE": other, "INDEX_FILE": project / ".git" / "index"}
    for name, path in hook.items():
        monkeypatch.setenv(f"GIT_{name}", str(path))
    with built_revision(project, "HEAD~1", log) as base, built_working_tree(project, log) as head:
        assert git_state(project) == state == {"commit": head.commit, "dirty": True}
        found = [
            {str(path.relative_to(build.folder)): path.read_text() for path in build.folder.rglob("*.txt")}
            for build in (base, head)
        ]
        assert all((build.folder / "link").is_symlink() for build in (base, head))
        assert repository(project / "data") == project
    shared = {"data/n.txt": "n", "library/code.txt": "1"}
    assert found == [
        {**shared, "kept.txt": "middle", "gone.txt": "old"},
        {**shared, "kept.txt": "changed", "new.txt": "new"},
    ]
    assert (project / ".git" / "index").read_bytes() == index
    assert git(project, "status", "--porcelain") == status
    assert git(project, "worktree", "list").count("\n") == 0
    assert not (tmp_path / "hooked").exists()


@pytest.mark.parametrize("wheel", [True, False])
def test_a_plain_project_builds_whatever_pip_is_told(
    wheel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    (source / "plain.py").write_text("VALUE = 1\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "plain"\nversion = "1"\n[tool.setuptools]\npy-modules = ["plain"]\n'
    )
    told = {"PIP_USER": "1", "PIP_PREFIX": str(tmp_path / "prefix"), "PIP_REQUIRE_VIRTUALENV": "1", "PIP_TARGET": "/x"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    if wheel:
        if not builds._has_build_requirements(source):
            pytest.skip("setuptools is not here, and its build would need a network")
        builds._install(source, folder, tmp_path / "log", "it")
        assert (folder / "plain.py").read_text() == "VALUE = 1\n"
    else:  # setuptools before 70.1 needs `wheel`, and says so only when a build begins
        for name, answer in (("find_spec", None), ("version", "65.5")):
            monkeypatch.setattr(builds, name, lambda _, answer=answer: answer)
        assert not builds._has_build_requirements(source)


def test_without_pip_it_says_so_before_anything_is_checked_out(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "find_spec", lambda name: None)
    with (
        pytest.raises(RunError, match=f"{sys.executable}: has no pip"),
        built_revision(project, "HEAD", tmp_path / "log"),
    ):
        pass
    assert not (tmp_path / "log").exists()


def test_git_gives_the_reason_itself(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(project), "bare")
    moved = tmp_path / "moved"
    git(project, "worktree", "add", "-q", str(moved))
    (moved / ".git").write_text("gitdir: /nowhere/.git/worktrees/moved\n")
    plain = tmp_path / "plain"
    plain.mkdir()
    for path, reason in (
        (tmp_path / "bare", "this operation must be run in a work tree"),
        (moved, "not a git repository: /nowhere"),
        (plain, "lies in no git repository"),
    ):
        with pytest.raises(RunError, match=f"{path}: {reason}"):
            repository(path)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(RunError, match=r"git: No such file or directory|git: Not a directory"):
        repository(plain)


def test_a_submodule_that_cannot_be_had_is_named(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "library")
    git(project, "submodule", "deinit", "-q", "-f", "library")
    with (
        pytest.raises(RunError, match=r"(?s)could not check out the submodules of revision HEAD; .*library"),
        built_revision(project, "HEAD", tmp_path / "log"),
    ):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares memory by a path of a process")
def test_both_parents_make_the_inputs_of_the_points_and_sweep_alike(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load_experiment(spec)
    target = resolve_target(experiment)
    (dtype,) = {point.dtype for point in experiment.points(target.device, target.dtype)}
    other = replace(target, dtype="float16" if dtype != "float16" else "float32")  # what the machine would prefer
    job = InterleavedJob(experiment, other, tmp_path, RepeatProgress(quiet=True), processes=1)
    asked: list[dict[str, Any]] = []

    def ask(self: WorkerProcess, op: str, limit_s: float, original: Any = WorkerProcess.ask, **arguments: Any) -> Any:
        if op == "warm":
            asked.append(arguments)
        return original(self, op, limit_s, **arguments)

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    sides = Side("base", "BASE"), Side("head", "HEAD")
    with job.listener, sweep_file() as swept:
        base, head = Interleaved(job, *sides).pair(1, None, swept)
    assert all(case.status in MEASURED for case in base.cases + head.cases)
    assert asked[0] == asked[1]
    assert [(arguments["dtype"], arguments["sweep_file"]) for arguments in asked] == [(dtype, swept)] * 2
