"""Builds of a project: its revisions and its working tree, in temporary folders for the time of a measurement."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

from chunkbench.environment.revision import PROJECT, copy_package, git_output, git_state
from chunkbench.kernels import cpu
from chunkbench.store import RunError

_LOG_LINES = 15
"""Last lines of the build's log that an error message shows."""


@dataclass(frozen=True)
class Build:
    """A project that is built."""

    commit: str
    dirty: bool
    """Whether files of the working tree differ from the commit."""
    folder: Path
    """Folder with the project's packages, as pip installs them. All other packages are the installed ones."""


@contextmanager
def built_revision(project: Path, ref: str, log: Path) -> Iterator[Build]:
    """Check out `ref` of the repository `project` in a worktree and build it. Both are removed at the end, also after
    Ctrl-C.

    The output of the build is appended to `log`. Raises `RunError` if there is no such revision, if `project` is not a
    git checkout, or if the build fails.
    """
    commit = commit_of(project, ref)
    with _new_folder() as folder:
        source = folder.with_name("source")
        try:
            worktree = ["git", "-C", str(project), "worktree", "add", "--detach", str(source), commit]
            _run(worktree, log, "check out", f"revision {ref}")
            yield Build(commit, False, _install(source, folder, log, f"revision {ref}"))
        finally:
            # The folder goes here, where no signal interrupts it, and before git forgets worktrees that are gone.
            with _without_signals():
                _run_silently(["git", "-C", str(project), "worktree", "remove", "--force", str(source)])
                shutil.rmtree(folder.parent, ignore_errors=True)
                _run_silently(["git", "-C", str(project), "worktree", "prune"])


@contextmanager
def built_working_tree(project: Path, log: Path) -> Iterator[Build]:
    """Copy the files of the repository `project` that git does not ignore, changed or new ones too, and build the copy.

    ChunkBench's own working tree is what is installed: a build takes a minute or two. Raises as `built_revision` does.
    """
    state = git_state(project)
    if state is None:
        raise RunError(f"{project}: is not the top folder of a git checkout with a commit")
    if project.resolve() == PROJECT:
        with _new_folder() as folder:
            copy_package(folder)
            yield Build(state["commit"], state["dirty"], folder)
        return
    listed = subprocess.run(
        ["git", "-C", str(project), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    )
    with _new_folder() as folder:
        source = folder.with_name("source")
        for name in map(os.fsdecode, filter(None, listed.stdout.split(b"\0"))):
            if (project / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(project / name, source / name)
        built = _install(source, folder, log, "the working tree")
        yield Build(state["commit"], state["dirty"], built)


@contextmanager
def _new_folder() -> Iterator[Path]:
    """An empty folder for a build. The paths of all builds have one length: the length has an effect on speed (see
    `sides`)."""
    with tempfile.TemporaryDirectory(prefix="chunkbench-") as temporary:
        folder = Path(temporary) / "build"
        folder.mkdir()
        yield folder


def repository(folder: Path) -> Path:
    """Top folder of the git repository that holds a folder. Raises `RunError`."""
    top = git_output(folder, "rev-parse", "--show-toplevel")
    if top is None:
        raise RunError(f"{folder}: lies in no git repository; start the command inside of one, or name one")
    return Path(top)


@contextmanager
def _without_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM for the second that the cleaning takes."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def commit_of(project: Path, ref: str) -> str:
    """The commit that `ref` names in the repository `project`. Raises `RunError`."""
    if not (project / ".git").exists():
        raise RunError(f"{project}: is not the top folder of a git checkout")
    commit = git_output(project, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if commit is None:
        shallow = git_output(project, "rev-parse", "--is-shallow-repository") == "true"
        commits = git_output(project, "rev-list", "--count", "HEAD") or "no"
        told = "it is a shallow clone: git fetch --unshallow" if shallow else f"HEAD has {commits} commits"
        raise RunError(f"revision {ref}: no such revision in {project}; {told}")
    return commit


def _install(source: Path, folder: Path, log: Path, what: str) -> Path:
    """Build the project in `source` into `folder`, and return `folder`."""
    options = ["--no-deps", "--no-compile", "--target", str(folder)]
    # What a project needs to build is taken from the environment, if all of it is there: CI may have no network.
    if _has_build_requirements(source):
        options.append("--no-build-isolation")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    # If this revision has its native module, a build of ChunkBench without it would be no fair base.
    required = {} if cpu.native() is None else {"CHUNKBENCH_REQUIRE_NATIVE": "1"}
    _run([*pip, *options, str(source)], log, "build", what, required)
    return folder


def _has_build_requirements(source: Path) -> bool:
    """Whether everything that a project's build requires is installed here."""
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        requirements = [Requirement(text) for text in project["build-system"]["requires"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all(map(_is_installed, requirements))


def _is_installed(requirement: Requirement) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _run(command: list[str], log: Path, action: str, ref: str, extra: dict[str, str] | None = None) -> None:
    with log.open("ab") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False, env=os.environ | (extra or {})
        )
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise RunError(f"revision {ref}: could not {action} it; the end of {log}:\n{tail}")


def _run_silently(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=False)
