"""Another revision of the project, built beside this one for as long as it is measured."""

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

_TAIL = 15


@dataclass(frozen=True)
class Revision:
    """A revision that can be run."""

    commit: str
    build: Path
    """Folder with the package alone; every other package is the one installed here."""


@contextmanager
def built(ref: str, log: Path) -> Iterator[Revision]:
    """Check out `ref` in a worktree and build it; all of it is gone afterwards, also after Ctrl-C.

    What the build prints is appended to `log`. Raises `RunError` when there is no such revision, this is no checkout,
    or it does not build.
    """
    commit = resolve(ref)
    folder = Path(tempfile.mkdtemp(prefix="chunkbench-base-"))
    source = folder / "source"
    try:
        _run(["git", "-C", str(PROJECT), "worktree", "add", "--detach", str(source), commit], log, "check out", ref)
        yield Revision(commit, _install(source, folder / "build", log, ref))
    finally:
        with _undisturbed():
            _quietly(["git", "-C", str(PROJECT), "worktree", "remove", "--force", str(source)])
            shutil.rmtree(folder, ignore_errors=True)
            _quietly(["git", "-C", str(PROJECT), "worktree", "prune"])


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without Ctrl-C and polite kills, for the second that cleaning up takes."""
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
    found = subprocess.run(
        ["git", "-C", str(PROJECT), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise RunError(f"revision {ref}: no such revision here; a shallow clone needs git fetch --unshallow")
    return found.stdout.strip()


def _install(source: Path, folder: Path, log: Path, ref: str) -> Path:
    """The project as it is in `source`, built into a folder."""
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--target", str(folder)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    # Where this revision has its native module, one that does without is no match.
    required = {} if cpu.native() is None else {"CHUNKBENCH_REQUIRE_NATIVE": "1"}
    _run([*pip, *options, str(source)], log, "build", ref, required)
    return folder


def _run(command: list[str], log: Path, what: str, ref: str, extra: dict[str, str] | None = None) -> None:
    with log.open("ab") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False, env=os.environ | (extra or {})
        )
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
        raise RunError(f"revision {ref}: could not {what} it; the end of {log}:\n{tail}")


def _quietly(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=False)
