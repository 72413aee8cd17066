"""Which revision of the project is running."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

PROJECT = Path(__file__).resolve().parents[2]
_DATA = ("__pycache__", "experiments", "results")


class GitState(TypedDict):
    """A commit, and whether files differ from it."""

    commit: str
    dirty: bool


def package_files() -> Iterator[tuple[Path, Path]]:
    """(path, path inside the package) of this package's code, in order: what runs here, committed or not."""
    package = find_spec("chunkbench")
    assert package is not None
    # Two places, of an editable install: sources here, what was compiled there.
    for place in package.submodule_search_locations or ():
        for folder, folders, files in os.walk(place, followlinks=True):
            folders[:] = sorted(name for name in folders if name not in _DATA)
            for name in sorted(files):
                path = Path(folder) / name
                yield path, path.relative_to(place)


def git_state(path: Path = PROJECT) -> GitState | None:
    """The commit checked out in the repository whose top folder is `path`; None if it is not one or git is missing.

    Untracked files count as a difference, ignored ones do not. A repository further up, around an installed package, is
    not the project's and gives None.
    """
    top = _git(path, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != path.resolve():
        return None
    commit, changes = _git(path, "rev-parse", "HEAD"), _git(path, "status", "--porcelain")
    if commit is None or changes is None:
        return None
    return GitState(commit=commit, dirty=bool(changes))


def _git(path: Path, *arguments: str) -> str | None:
    # Without the lock that `status` takes to write its cache, a commit under way beside us is not disturbed.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(path), *arguments], capture_output=True, text=True, check=False, env=environment
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
