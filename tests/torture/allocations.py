"""Memory that is short: limits on a worker, and allocations that fail."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from chunkbench.bench.environment.cgroups import control_groups
from chunkbench.bench.runner.client import ForkedWorker
from tests.torture.decoding import NAMES, Watcher, preloaded, run, write_experiment
from tests.torture.trials import Harm, Part, Trial

LIMITS = {"address space": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA}
MOMENTS = 42
"""About as many announcements does a run make."""
EARLY = 4
"""Announcements before a worker has what it needs: from then on its heap has room within the addresses it has."""
ROWS = 2 * len(NAMES)


@contextmanager
def group() -> Iterator[Path | None]:
    """A control group of version 1 inside that of this process, whose limits go on. None where it may not be made."""
    here = next((folder for version, folder in control_groups("memory") if version == 1), None)
    folder = here / f"torture-{os.getpid()}" if here else None
    try:
        if folder:
            folder.mkdir()
    except OSError:
        folder = None
    yield folder
    if folder:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def trials() -> Iterator[Harm]:
    page, tried, hurt = preloaded().page, 0, 0
    with group() as limited:

        def harm(trial: Trial) -> None:
            nonlocal tried, hurt
            chance = trial.chance
            kind = ("native", "large", *LIMITS, *(("group",) if limited else ()))[trial.number % (4 + bool(limited))]
            moment = chance.randrange(EARLY if kind == "address space" else MOMENTS)
            spare, n_p = 1 << chance.randrange(12, 24), chance.choice((40, 500, 2000))
            workers: list[ForkedWorker] = []

            def act() -> None:
                if kind in ("native", "large"):
                    page.fail(kind == "native", 1 << chance.randrange(12, 20), chance.randrange(1, 40))
                    return
                process = psutil.Process(workers[-1].pid)
                if kind in LIMITS:
                    size = process.memory_info().vms if kind == "address space" else process.memory_info().data
                    process.rlimit(LIMITS[kind], (size + spare, size + spare))
                elif limited:
                    (limited / "memory.limit_in_bytes").write_text("-1")
                    (limited / "cgroup.procs").write_text(str(process.pid))
                    with suppress(OSError):  # busy: the system could not take back as much, and sets no limit
                        (limited / "memory.limit_in_bytes").write_text(str(spare))

            spec = write_experiment(trial.folder, n_p)
            try:
                rows = run(spec, trial.folder / "run", Watcher(moment, act), workers.append)
            finally:
                tried, hurt = tried + (kind in ("native", "large")), hurt + page.failed
                page.fail(False, 0, 0)
            told = [f"{row.implementation} {row.n_s}: {row.status} {row.reason}" for row in rows]
            assert len(rows) == ROWS, told
            for row, line in zip(rows, told, strict=True):
                assert row.status in ("ok", "noisy", "oom"), f"{kind}: {line}"
                if row.status != "oom":
                    assert [len(samples) for samples in row.samples_us] == [3, 3, 3], line
                    assert row.max_error is not None, line
                    assert row.max_error < 1e-5, line
            points = {row.n_s for row in rows if row.status == "oom"}
            harness = any(row.reason.startswith("harness") for row in rows)
            if kind in ("native", "large") and not harness:
                failed = [line for line, row in zip(told, rows, strict=True) if row.status == "oom"]
                assert len(failed) <= 1 or all("in survey" in line for line in failed), failed
            assert not harness or len(points) == 1 or kind in LIMITS, told

        yield harm
        assert hurt or tried < 20, f"no allocation failed in {tried} trials: the library does nothing"


PART = Part(
    "memory",
    "limits by `setrlimit` and a control group (version 1), and allocations that fail at random in the native module "
    "and everywhere, in a worker that decodes",
    "rows `oom`, all others whole and right; the driver goes on",
    trials,
)
