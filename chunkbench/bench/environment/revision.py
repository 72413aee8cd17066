"""Calls git, and finds the revision of the running code."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

_LOCAL = frozenset(
    f"GIT_{name}"
    for name in (
        *(
            "DIR",
            "WORK_TREE",
            "IMPLICIT_WORK_TREE",
            "COMMON_DIR",
            "INDEX_FILE",
            "PREFIX",
            "NAMESPACE",
            "INTERNAL_SUPER_PREFIX",
        ),
        *("OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES", "GRAFT_FILE", "SHALLOW_FILE", "NO_REPLACE_OBJECTS"),
        *("REPLACE_REF_BASE", "QUARANTINE_PATH", "CONFIG", "CONFIG_PARAMETERS", "CONFIG_COUNT"),
    )
)
"""Environment variables that bind git to one repository (list: `git rev-parse --local-env-vars`). Git sets these
variables for its hooks. `git_environment` removes them, so that git uses the repository of the given path."""


def git_environment(**more: str) -> dict[str, str]:
    """Environment variables for git and for programs that may call git.

    Variables that name another repository are removed. `git status` writes no cache, because the lock of the cache can
    make a concurrent commit fail. Git never asks for a password.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _LOCAL}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", **more}


def git(path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run git in the repository that holds `path`, without its hooks. Raises OSError if there is no git."""
    command = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(path), *arguments]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        env=git_environment(**environment),
    )


def git_output(path: Path, *arguments: str) -> str | None:
    """The output of git in the repository that holds `path`; None if the command fails or there is no git."""
    try:
        done = git(path, *arguments)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


PROJECT = Path(__file__).resolve().parents[3]
_DATA = ("__pycache__", "experiments", "results")


class GitState(TypedDict):
    """A commit, and whether files differ from this commit."""

    commit: str
    dirty: bool


def package_files() -> Iterator[tuple[Path, Path]]:
    """All code files of the running package, committed or not, as (path, path inside the package)."""
    package = find_spec("chunkbench")
    assert package is not None
    # An editable install has two locations: the sources, and the compiled module.
    for location in package.submodule_search_locations or ():
        for folder, folders, files in os.walk(location, followlinks=True):
            folders[:] = sorted(name for name in folders if name not in _DATA)
            for name in sorted(files):
                path = Path(folder) / name
                yield path, path.relative_to(location)


def copy_package(folder: Path) -> None:
    """Copy the running package, with its native code, into a folder. Raises `OSError`."""
    for path, inside in package_files():
        target = folder / "chunkbench" / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def code_digest(*suffixes: str) -> str:
    """SHA-256 of the running package's files with these suffixes, committed or not."""
    digest = hashlib.sha256()
    for path, _ in package_files():
        if path.suffix in suffixes:
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def git_state(path: Path = PROJECT) -> GitState | None:
    """The checked-out commit of the repository whose top folder is `path`. None without such a repository or without
    git.

    Untracked files count as a difference, ignored files do not. A repository above `path` is not used, because a
    package may be installed inside another project's repository.
    """
    top = git_output(path, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != path.resolve():
        return None
    commit, changes = git_output(path, "rev-parse", "HEAD"), git_output(path, "status", "--porcelain")
    if commit is None or changes is None:
        return None
    return GitState(commit=commit, dirty=bool(changes))
