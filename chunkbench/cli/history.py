"""`chunkbench history`: shows one figure of each case in many recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkbench.cli.comparing import (
    ReportOptions,
    confidence_option,
    metric_option,
    out_option,
    threshold_option,
    write_and_show,
)
from chunkbench.cli.options import gathered
from chunkbench.cli.output import fail, format_option

if TYPE_CHECKING:
    from chunkbench.bench.store import Run

_EXAMPLES = """\b
Examples:
  chunkbench history results/runs
  chunkbench history results/nightly --out history
  chunkbench history results/nightly --metric kv_bytes
  chunkbench history nightly-* --threshold 10% --format json
"""


@click.command("history", epilog=_EXAMPLES)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@metric_option
@threshold_option
@confidence_option("changes")
@format_option("documents", "records", "data")
@out_option("Write table, JSON and picture into this folder.", file_okay=False)
@gathered(ReportOptions)
def command(folders: tuple[Path, ...], metric: str, options: ReportOptions) -> None:
    """Show where the latency of a case, or another figure, changed for at least three runs.

    The runs in each DIR are ordered by time. DIR is a run, a folder of `chunkbench regress --out` (its HEAD counts),
    or a folder that holds runs at any depth. Each machine has a series of its own. With fewer than about ten runs,
    the test cannot rule out chance.
    """
    from chunkbench.report.compare.history import history
    from chunkbench.report.compare.history_document import document, draw
    from chunkbench.report.compare.metrics import metric_of
    from chunkbench.run_error import RunError

    options.check_confidence()
    threshold = options.threshold_share()
    try:
        found = [runs for folder in folders for runs in _measurements(folder)]
    except RunError as error:
        fail(error)
    if len(found) == 1:
        fail(f"{folders[0]}: is one run, and one run has no history; name several runs, or a folder that holds them")
    try:
        figure = metric_of(metric, dict.fromkeys(runs[0].manifest.experiment.kind for runs in found))
    except RunError as error:
        fail(error)
    all_series = history(found, metric, threshold, options.confidence)
    if not all_series:
        fail(f"no case with {metric} in {', '.join(map(str, folders))}")
    write_and_show(
        document(all_series, figure, threshold, options.confidence), options, "history", ("json", "markdown")
    )
    if options.out is not None:
        draw(all_series, figure, options.out)


def _measurements(folder: Path) -> list[list[Run]]:
    """The measurement in this folder itself, or else all measurements below the folder, at any depth."""
    from chunkbench.bench.store import open_runs
    from chunkbench.run_error import RunError

    try:
        return [open_runs(folder)]
    except RunError:
        if not folder.is_dir() or (folder / "manifest.json").exists():
            raise
    found = _below(folder)
    if not found:
        raise RunError(f"{folder}: there is no run in it")
    return found


def _below(folder: Path) -> list[list[Run]]:
    from chunkbench.bench.store import open_runs

    found = []
    for entry in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        if any((entry / place / "manifest.json").exists() for place in ("", "1", "head/1")):
            found.append(open_runs(entry))
        else:
            found += _below(entry)
    return found
