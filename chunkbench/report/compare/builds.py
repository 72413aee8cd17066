"""Builds revisions and working trees of a project in temporary folders, which are removed after the measurement."""

from __future__ import annotations

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
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from chunkbench.bench.environment.revision import PROJECT, copy_package, git, git_environment, git_output, git_state
from chunkbench.kernels import cpu
from chunkbench.run_error import RunError

_LOG_LINES = 15
"""Number of lines that an error message shows from the end of the build's log."""


@dataclass(frozen=True)
class Build:
    commit: str
    dirty: bool
    """Whether files of the working tree differ from the commit."""
    folder: Path
    """Folder with the built packages of the project. Other packages are imported from the environment."""


@contextmanager
def built_revision(project: Path, ref: str, log: Path) -> Iterator[Build]:
    """Check out the revision `ref` of the git repository `project`, and build it. Checkout and build are removed at the
    end, also after Ctrl-C.

    The output of the build is appended to `log`. Raises `RunError` if the revision does not exist, if `project` is not
    a git checkout, or if the build fails.
    """
    commit = commit_of(project, ref)
    _check_builder()
    with _new_folder() as folder, _worktree(project, commit, folder.with_name("source"), log) as source:
        _check_out(project, source, log, f"revision {ref}")
        yield Build(commit, False, _install(source, folder, log, f"revision {ref}"))


@contextmanager
def built_working_tree(project: Path, log: Path) -> Iterator[Build]:
    """Copy the working tree of the git repository `project`, and build the copy. It also contains changed and new
    files, but no files that git ignores.

    For ChunkBench itself, the installed files are copied instead, because a build takes one or two minutes. The output
    of the build is appended to `log`. Raises `RunError`.
    """
    state = git_state(project)
    if state is None:
        raise RunError(f"{project}: is not the top folder of a git checkout with a commit")
    if project.resolve() == PROJECT:
        with _new_folder() as folder:
            copy_package(folder)
            yield Build(state["commit"], state["dirty"], folder)
        return
    _check_builder()
    with _new_folder() as folder, _worktree(project, state["commit"], folder.with_name("source"), log) as source:
        # The index is that of the commit, as in the project: builds may ask git for the version and for files.
        _run_git(source, log, "read", "the working tree", "reset", "-q")
        for name in _files(project):
            _copy(project / name, source / name)
        built = _install(source, folder, log, "the working tree")
        yield Build(state["commit"], state["dirty"], built)


@contextmanager
def _worktree(project: Path, commit: str, source: Path, log: Path) -> Iterator[Path]:
    """A worktree of a commit without its files. It is removed at the end, also after Ctrl-C."""
    try:
        add = ("worktree", "add", "--detach", "--no-checkout", str(source), commit)
        _run_git(project, log, "make a worktree of", commit, *add)
        yield source
    finally:
        # The folder is removed here, where no signal interrupts, and before git forgets missing worktrees.
        with _without_signals():
            git_output(project, "worktree", "remove", "--force", "--force", str(source))
            shutil.rmtree(source.parent, ignore_errors=True)
            git_output(project, "worktree", "prune")


def _check_out(project: Path, source: Path, log: Path, what: str) -> None:
    """Write the files of a worktree. The files of submodules come from the project's own copies of the submodules."""
    _run_git(source, log, "check out", what, "checkout", "-q", "--force", "HEAD")
    listed = git_output(source, "config", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$") or ""
    local = ["-c", "protocol.file.allow=always"]
    for line in listed.splitlines():
        key, _, path = line.partition(" ")
        if (project / path / ".git").exists():
            local += ["-c", f"{key.removesuffix('.path')}.url={project / path}"]
    if listed:
        _run_git(
            source,
            log,
            "check out the submodules of",
            what,
            *local,
            "submodule",
            "update",
            "-q",
            "--init",
            "--recursive",
        )


def _files(project: Path) -> list[str]:
    """All files that git does not ignore, including the files of submodules."""
    lists = (("--cached", "--recurse-submodules"), ("--others", "--exclude-standard"))
    names = [git(project, "ls-files", "-z", *words).stdout.split("\0") for words in lists]
    return [name for name in (*names[0], *names[1]) if name]


def _copy(path: Path, target: Path) -> None:
    """Copy a file, or a link as a link. Does nothing if git lists the file but it is gone."""
    if path.is_symlink() or path.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)


@contextmanager
def _new_folder() -> Iterator[Path]:
    """An empty folder for a build. The paths of all builds have the same length, because the length has an effect on
    speed (see `sides`)."""
    with tempfile.TemporaryDirectory(prefix="chunkbench-") as temporary:
        folder = Path(temporary) / "build"
        folder.mkdir()
        yield folder


def repository(folder: Path) -> Path:
    """Top folder of the git repository that contains `folder`. Raises `RunError` if there is none."""
    try:
        done = git(folder, "rev-parse", "--show-toplevel")
    except OSError as error:
        raise RunError(f"git: {error.strerror or error}; install it") from None
    if done.returncode:
        reason = done.stderr.strip().removeprefix("fatal: ")
        if "not a git repository (or any" in reason:
            reason = "lies in no git repository; start the command inside of one, or name one"
        raise RunError(f"{folder}: {reason}")
    return Path(done.stdout.strip())


@contextmanager
def _without_signals() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP during a clean-up, which takes about a second."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def commit_of(project: Path, ref: str) -> str:
    """The commit hash of `ref` in the repository `project`. Raises `RunError`."""
    if not (project / ".git").exists():
        raise RunError(f"{project}: is not the top folder of a git checkout")
    commit = git_output(project, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if commit is None:
        shallow = git_output(project, "rev-parse", "--is-shallow-repository") == "true"
        commits = git_output(project, "rev-list", "--count", "HEAD") or "no"
        hint = "it is a shallow clone: git fetch --unshallow" if shallow else f"HEAD has {commits} commits"
        raise RunError(f"revision {ref}: no such revision in {project}; {hint}")
    return commit


def _install(source: Path, folder: Path, log: Path, what: str) -> Path:
    """Build the project in `source` into `folder`, and return `folder`."""
    options = ["--no-deps", "--no-compile", "--target", str(folder)]
    # If the environment has everything that the build requires, pip uses the environment: CI may have no network.
    if _has_build_requirements(source):
        options.append("--no-build-isolation")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    # If this revision has its native module, a base without native module would be unfair.
    required = {} if cpu.native() is None else {"CHUNKBENCH_REQUIRE_NATIVE": "1"}
    # Ignore the user's settings of where pip installs packages.
    elsewhere = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DRY_RUN": "0"}
    environment = git_environment(**required, **elsewhere)
    for name in ("PIP_PREFIX", "PIP_ROOT", "PIP_TARGET", "PIP_PYTHON"):
        environment.pop(name, None)
    with log.open("ab") as file:
        command = [*pip, *options, str(source)]
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, env=environment)
    if done.returncode:
        raise _failed(log, "build", what)
    return folder


def _check_builder() -> None:
    """Raise RunError if there is nothing to build with."""
    if find_spec("pip") is None:
        raise RunError(
            f"{sys.executable}: has no pip, which builds the sides; python -m ensurepip or uv pip install pip"
        )


def _has_build_requirements(source: Path) -> bool:
    """Whether everything that a project's build requires is installed here."""
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        requirements = [Requirement(text) for text in project["build-system"]["requires"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if any(requirement.name == "setuptools" for requirement in requirements):
        # Before it had a `bdist_wheel` of its own, setuptools asked for the package `wheel` when a build began.
        requirements.append(Requirement("setuptools>=70.1" if find_spec("wheel") is None else "setuptools"))
    return all(map(_is_installed, requirements))


def _is_installed(requirement: Requirement) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _run_git(path: Path, log: Path, action: str, what: str, *arguments: str) -> None:
    done = git(path, *arguments)
    with log.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(done.stdout + done.stderr)
    if done.returncode:
        raise _failed(log, action, what)


def _failed(log: Path, action: str, what: str) -> RunError:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    return RunError(f"could not {action} {what}; the end of {log}:\n{tail}")
