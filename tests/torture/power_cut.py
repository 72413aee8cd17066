"""Run directories that end in the middle of a write, at every byte of their last two lines."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chunkbench import workloads
from chunkbench.bench.store import SCHEMA_VERSION, TORN, RunWriter, open_run
from tests.command import chunkbench
from tests.torture.tiny import TinyRun
from tests.torture.trials import Harm, Part, Trial

RECORDED = Path(__file__).parents[2] / "results" / "recorded"
CUTS = 100
"""A trial cuts at so many bytes, one after the other; the next trial goes on behind them."""
EACH = 20
"""One trial of so many lets the command itself resume a run that is cut."""
LINES = 4
"""So many lines of a recorded run are kept: the same code reads all of them."""


@contextmanager
def trials() -> Iterator[Harm]:
    """The trials go through every byte of the last two lines of recorded runs, the last lines of which are kept."""
    workloads.register()
    pieces = []
    for run in sorted(path.parent for path in RECORDED.glob("*/*/cases.jsonl")):
        if open_run(run).manifest.schema_version == SCHEMA_VERSION:  # those of older versions are not resumed
            *_, before_last, last = (run / "cases.jsonl").read_bytes().splitlines(keepends=True)
            pieces += [(run, first) for first in range(0, len(before_last + last), CUTS)]

    def harm(trial: Trial) -> int:
        if trial.number % EACH == EACH - 1:
            return resumed(trial)
        source, first = pieces[trial.number % len(pieces)]
        lines = (source / "cases.jsonl").read_bytes().splitlines(keepends=True)[-LINES:]
        return cut(source, lines, first, trial.folder / "run", trial.chance)

    yield harm


def cut(source: Path, lines: list[bytes], first: int, run: Path, chance: random.Random) -> int:
    """Cut at each byte of a piece of the last two lines, and once more for the report. Returns how often."""
    run.mkdir()
    shutil.copy(source / "manifest.json", run)
    path, whole = run / "cases.jsonl", b"".join(lines)
    path.write_bytes(whole)
    cases = open_run(run).cases
    start = sum(map(len, lines[:-2])) + first
    places = range(start, min(start + CUTS, len(whole)))
    ends = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    for kept_bytes in places:
        path.write_bytes(whole[:kept_bytes])
        kept = sum(end <= kept_bytes for end in ends[1:])
        opened = open_run(run)
        assert opened.cases == cases[:kept], f"{source} cut at byte {kept_bytes}: {len(opened.cases)} rows of {kept}"
        assert opened.torn == (kept_bytes not in ends), (
            f"{source} cut at byte {kept_bytes}: it does not say that a line is cut"
        )
        writer = RunWriter.resume(run)
        assert writer.torn == opened.torn
        writer.append(cases[kept:])
        writer.close()
        again = open_run(run)
        assert again.cases == cases, f"{source} cut at byte {kept_bytes}: resumed, it has other rows"
        assert not again.torn, f"{source} cut at byte {kept_bytes}: resumed, its last line is still cut"
    path.write_bytes(whole[: chance.choice(places)])
    torn = open_run(run).torn
    done = chunkbench("report", str(run), "--format", "json")
    assert done.code == 0, done.stderr
    assert (TORN in done.stderr) == torn, f"the report does not say that a line is cut: {done.stderr}"
    return len(places) + 1


def resumed(trial: Trial) -> int:
    """A run, cut in its last two rows: the command says so, measures what is gone, and keeps the rest."""
    run = TinyRun("memory", trial.folder)
    assert run.complete() == 0, run.errors
    whole = (run.out / "cases.jsonl").read_bytes()
    *_, before_last, last = whole.splitlines(keepends=True)
    (run.out / "cases.jsonl").write_bytes(whole[: -trial.chance.randrange(1, len(before_last + last))])
    finished, torn = run.lines(), open_run(run.out).torn
    assert run.complete() == 0, run.errors
    assert (TORN in run.errors) == torn, f"the command does not say that a line was cut: {run.errors}"
    run.check_complete(finished)
    return 1


PART = Part(
    "power cut",
    "the run directory truncated at every byte of its last two records",
    "it loads, says what was dropped, and resumes",
    trials,
    minutes=4,
)
