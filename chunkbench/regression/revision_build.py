"""Another revision of the project, built in a temporary folder for the time of a measurement."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chunkbench.environment.revision import PROJECT
from chunkbench.kernels import cpu
from chunkbench.store import RunError

_LOG_LINES = 15
"""Last lines of the build's log that an error message shows."""


@dataclass(frozen=True)
class Revision:
    """A revision that is built."""

    commit: str
    folder: Path
    """Folder with this one package. All other packages are the installed ones."""


@contextmanager
def built_revision(ref: str, log: Path) -> Iterator[Revision]:
    """Check out `ref` in a worktree and build it. Both are removed at the end, also after Ctrl-C.

    The output of the build is appended to `log`. Raises `RunError` if there is no such revision, if this is not a git
    checkout, or if the build fails.
    """
    commit = resolve(ref)
    folder = Path(tempfile.mkdtemp(prefix="chunkbench-base-"))
    source = folder / "source"
    try:
        _run(["git", "-C", str(PROJECT), "worktree", "add", "--detach", str(source), commit], log, "check out", ref)
        yield Revision(commit, _install(source, folder / "build", log, ref))
    finally:
        with _without_signals():
            _run_silently(["git", "-C", str(PROJECT), "worktree", "remove", "--force", str(source)])
            shutil.rmtree(folder, ignore_errors=True)
            _run_silently(["git", "-C", str(PROJECT), "worktree", "prune"])


@contextmanager
def _without_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM for the second that the cleaning takes."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def resolve(ref: str) -> str:
    """The commit that `ref` names in this project's repository. Raises `RunError`."""
    if not (PROJECT / ".git").exists():
        raise RunError("regress needs a git checkout of chunkbench, installed in place (make setup)")
    done = subprocess.run(
        ["git", "-C", str(PROJECT), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunError(f"revision {ref}: no such revision here; a shallow clone needs git fetch --unshallow")
    return done.stdout.strip()


def _install(source: Path, folder: Path, log: Path, ref: str) -> Path:
    """Build the project in `source` into `folder`, and return `folder`."""
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--target", str(folder)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    # If this revision has its native module, a build without it would be no fair base.
    required = {} if cpu.native() is None else {"CHUNKBENCH_REQUIRE_NATIVE": "1"}
    _run([*pip, *options, str(source)], log, "build", ref, required)
    return folder


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
