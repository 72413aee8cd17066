"""Run directories that end in the middle of a write, at every byte of their last two lines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from chunkbench import workloads
from chunkbench.cli.main import cli
from chunkbench.store import TORN, RunWriter, open_run
from tests.torture.trials import Harm, Trial

RECORDED = Path("results/recorded")
LINES = 4
"""So many lines of a recorded run are kept: the same code reads all of them."""


@contextmanager
def trials() -> Iterator[Harm]:
    """A trial cuts some lines of a recorded run at every byte of the last two, one after the other."""
    workloads.register()
    recorded = sorted(path.parent for path in RECORDED.glob("*/*/cases.jsonl"))

    def harm(trial: Trial) -> int:
        source, run = trial.chance.choice(recorded), trial.folder / "run"
        lines = (source / "cases.jsonl").read_bytes().splitlines(keepends=True)
        first = trial.chance.randrange(max(1, len(lines) - LINES))
        return cut(source, lines[first : first + LINES], run, trial.chance.random())

    yield harm


def cut(source: Path, lines: list[bytes], run: Path, shown: float) -> int:
    """How many bytes were cut at. `shown`: at which of them the report is asked, too, as a share."""
    run.mkdir()
    shutil.copy(source / "manifest.json", run)
    path, whole = run / "cases.jsonl", b"".join(lines)
    path.write_bytes(whole)
    cases = open_run(run).cases
    start = sum(map(len, lines[:-2]))
    sizes = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    for size in range(start, len(whole)):
        path.write_bytes(whole[:size])
        kept = sum(end <= size for end in sizes[1:])
        opened = open_run(run)
        assert opened.cases == cases[:kept], f"{source} cut at byte {size}: {len(opened.cases)} rows of {kept}"
        assert opened.torn == (size not in sizes), f"{source} cut at byte {size}: it does not say that a line is cut"
        writer = RunWriter.resume(run)
        assert writer.torn == opened.torn
        writer.append(cases[kept:])
        writer.close()
        again = open_run(run)
        assert again.cases == cases, f"{source} cut at byte {size}: resumed, it has other rows"
        assert not again.torn, f"{source} cut at byte {size}: resumed, its last line is still cut"
    path.write_bytes(whole[: start + int(shown * (len(whole) - start - 1)) + 1])
    torn = open_run(run).torn
    done = CliRunner().invoke(cli, ["report", str(run), "--format", "json"])
    assert done.exit_code == 0, done.output
    assert (TORN in done.stderr) == torn, f"the report does not say that a line is cut: {done.stderr}"
    return len(whole) - start
