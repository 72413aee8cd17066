"""Trials of a part: the same harm again and again with other seeds, counted until the time is over."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path


class Unavailable(Exception):
    """This machine lacks what a part needs. The message says what."""


@dataclass(frozen=True)
class Trial:
    """One trial. All that it draws comes from `chance`, so the same number does the same harm again."""

    number: int
    chance: random.Random
    folder: Path
    """Empty. Kept if the trial fails."""


Harm = Callable[[Trial], int | None]
"""Does harm once and checks what must hold. Returns how many things it tried (none: one). Raises AssertionError with
the reason if something does not hold."""


@dataclass(frozen=True)
class Part:
    """A kind of harm. The table in docs/reliability.md says what is done, and what must hold."""

    name: str
    open: Callable[[], AbstractContextManager[Harm]]
    """Makes what all trials share, for example a server. Raises Unavailable."""
    short: Callable[[], AbstractContextManager[Harm]] | None = None
    """The same for `make test`, if `open` takes minutes, for example for a build."""
    minutes: float = 6.0
    """Time of its trials in `make torture`, the opening included. 0: one trial, since all trials are the same."""


@dataclass
class Counts:
    """What came of a part's trials."""

    first: int
    """Number of the first trial."""
    trials: int = 0
    tried: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """Number of the trial, and why it failed."""
    seconds: float = 0.0


def torture(
    part: Part, first: int, seconds: float, most: int | None = None, keep: Path | None = None
) -> Iterator[Counts]:
    """Make trials until the time is over, at least one and at most `most`. Yields the counts after each of them.

    Folders of failed trials stay in `keep`. Raises Unavailable.
    """
    counts, start = Counts(first), time.monotonic()
    try:
        yield from _trials(part, counts, start, seconds, most, keep)
    except Unavailable:
        raise
    except Exception:  # in what all trials share; other parts go on
        counts.failures[first + counts.trials] = f"outside of the trials: {traceback.format_exc()}"
        counts.trials, counts.tried = counts.trials + 1, counts.tried + 1
        yield counts


def _trials(
    part: Part, counts: Counts, start: float, seconds: float, most: int | None, keep: Path | None
) -> Iterator[Counts]:
    with part.open() as harm:
        while most is None or counts.trials < most:
            number = counts.first + counts.trials
            folder = Path(tempfile.mkdtemp(prefix=f"torture-{number}-"))
            try:
                tried = harm(Trial(number, random.Random(f"{part.name} {number}"), folder))
                counts.tried += 1 if tried is None else tried
            except Exception as error:
                counts.tried += 1
                reason = str(error) if isinstance(error, AssertionError) and str(error) else traceback.format_exc()
                counts.failures[number] = reason
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    kept = keep / f"{part.name.replace(' ', '-')}-{number}"
                    shutil.copytree(folder, kept, dirs_exist_ok=True)
                    (kept / "why").write_text(reason)
            finally:
                remove(folder)
            counts.trials += 1
            counts.seconds = time.monotonic() - start
            yield counts
            if counts.seconds >= seconds:
                return


def ran(
    command: Sequence[str | Path], folder: Path | None = None, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What became of a command, with more variables: a download that hangs ends after 20 minutes."""
    return subprocess.run(
        command, cwd=folder, env=os.environ | (more or {}), capture_output=True, text=True, check=False, timeout=1200
    )


def remove(folder: Path) -> None:
    """Remove a folder, also where a trial took the right to write in it."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
