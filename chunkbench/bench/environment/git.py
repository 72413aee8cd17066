"""The one way to call git: on the repository that a path names, whatever a hook or a shell says of another one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
"""Variables of one repository (`git rev-parse --local-env-vars`). Git gives them to its hooks."""


def git_environment(**more: str) -> dict[str, str]:
    """The environment without variables that name another repository; for git, and for what may call it.

    `git status` takes a lock to write its cache, and that lock can make a concurrent commit fail: it is off. Nothing
    asks for a password.
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
    """What git prints in the repository that holds `path`; None if it fails or there is no git."""
    try:
        done = git(path, *arguments)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
