"""Runs whose disk fails: full, read-only, away, or an error where a file is written or closed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.harm import library
from tests.torture.tiny import POINTS, ROWS, TinyRun
from tests.torture.trials import Harm, Part, Trial, Unavailable

CLOSES = 12
PAGES = 24
"""Pages of 4 KiB of a full disk, at most: a run and its report need about as many."""


@contextmanager
def trials() -> Iterator[Harm]:
    """A trial harms the disk of one run in one way, then mends it and resumes the run."""
    library()
    folder = Path(tempfile.mkdtemp(prefix="torture-disk-"))
    try:
        mount(folder, "-t", "tmpfs", "-o", "size=4k", "tmpfs")
        unmount(folder)
        # A run of one process is short. Where the moment counts, points have to take longer.
        others = (read_only, "replay"), (moved_away, "replay"), (closed_with_an_error, "memory")
        ways = [way for other in others for way in ((full, "memory"), (full, "memory"), other)]

        def harm(trial: Trial) -> None:
            place = trial.folder / "disk"
            place.mkdir()
            way, kind = ways[trial.number % len(ways)]
            run = TinyRun(kind, trial.folder, place / "run")
            with run.cleaned(), contextlib.ExitStack() as mounts:
                mounts.callback(unmount, place)
                finished = way(run, trial, place)
                code = run.complete()
                assert code == 0, f"after the disk was mended: exit code {code}: {run.errors}"
                run.check_complete(finished)
                run.check_released(set())

        yield harm
    finally:
        shutil.rmtree(folder)


def full(run: TinyRun, trial: Trial, place: Path) -> list[bytes]:
    """The disk has room for a random part of the run."""
    mount(place, "-t", "tmpfs", "-o", f"size={4 * trial.chance.randint(1, PAGES)}k", "tmpfs")
    finished = refused(run, run.complete())
    mount(place, "-o", "remount,size=8m")
    return finished


def read_only(run: TinyRun, trial: Trial, place: Path) -> list[bytes]:
    """The disk is read-only from a random moment."""
    mount(place, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
    run.start()
    at_a_moment(run, trial)
    # Files that are open for writing forbid it to the mount itself; a second one hides it.
    mount(place, "--bind", str(place))
    mount(place, "-o", "remount,ro,bind")
    finished = refused(run, run.end())
    unmount(place, all_of_them=False)
    return finished


def moved_away(run: TinyRun, trial: Trial, place: Path) -> list[bytes]:
    """The run's folder is taken away at a random moment, and comes back."""
    run.start()
    at_a_moment(run, trial)
    away = place / "away"
    if not run.out.exists():
        return refused(run, run.end())
    run.out.rename(away)
    code = run.end()
    if run.out.exists():
        assert not (run.out / "cases.jsonl").exists(), "rows are in a folder that the run made a second time"
        shutil.rmtree(run.out)
    away.rename(run.out)
    return refused(run, code)


def closed_with_an_error(run: TinyRun, trial: Trial, place: Path) -> list[bytes]:
    """A random `close` reports an error, as network disks do."""
    run.close_fails = trial.chance.randint(1, CLOSES)
    finished = refused(run, run.complete())
    run.close_fails = 0
    return finished


def at_a_moment(run: TinyRun, trial: Trial) -> None:
    """Wait until a random number of points is on disk, and a little longer."""
    points, longer = trial.chance.randrange(POINTS), trial.chance.uniform(0, 0.3)
    while run.driver.poll() is None and not (run.out.exists() and len(run.finished()) >= points * ROWS[run.kind]):
        time.sleep(0.005)
    time.sleep(longer)


def refused(run: TinyRun, code: int) -> list[bytes]:
    """The command ended as it must: well, or with 2 and the path. Returns the finished lines."""
    assert code in (0, 2), f"exit code {code}: {run.errors}"
    assert "Traceback" not in run.errors, run.errors
    if code == 0:
        run.check_complete(run.finished())
    assert code == 0 or str(run.out) in run.errors, f"the message names no path: {run.errors}"
    return run.finished()


def mount(place: Path, *words: str) -> None:
    """Raises Unavailable where this process may not mount."""
    done = subprocess.run(["mount", *words, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"mount fails ({done.stderr.strip()}); root may mount")


def unmount(place: Path, all_of_them: bool = True) -> None:
    """Take away what is mounted on a folder; the uppermost alone, or all."""
    while subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False).returncode == 0:
        if not all_of_them:
            return


PART = Part(
    "disk",
    "full at random moments (a small tmpfs), read-only, folder removed during the run, an error at close",
    "exit code 2 with the path, or 0 with all that was to be measured; finished points are kept",
    trials,
    minutes=6,
)
