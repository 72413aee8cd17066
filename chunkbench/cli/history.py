"""`chunkbench history`: how cases developed over many recorded runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkbench.cli.comparing import share
from chunkbench.cli.output import colour_wanted, fail

if TYPE_CHECKING:
    from chunkbench.store import Run

_EXAMPLES = """\b
Examples:
  chunkbench history results/runs
  chunkbench history results/recorded/ci-runner --out history
  chunkbench history nightly-* --threshold 10% --format json
"""


@click.command("history", epilog=_EXAMPLES, short_help="Latencies over many runs, and where they changed.")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--threshold", default="5%", show_default=True, metavar="SHARE", help="Changes up to this are none.")
@click.option("--confidence", type=float, default=0.99, show_default=True, help="Of all changes together, 0.5 to 1.")
@click.option("--format", "form", type=click.Choice(["table", "markdown", "json"]), default="table", show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write table, JSON and picture in here.")
def command(folders: tuple[Path, ...], threshold: str, confidence: float, form: str, out: Path | None) -> None:
    """Order the runs in DIR by time and tell where the latency of a case changed and stayed changed.

    DIR is a run, a recording (a folder of runs 1, 2, ...) or a folder of those. Runs of different machines make series
    of their own. A level has to last for three runs, and ten or so are the fewest in which chance can be ruled out.
    """
    from chunkbench.regression.history import history
    from chunkbench.regression.report.history import document, draw
    from chunkbench.report.formats import render_document
    from chunkbench.store import RunError

    if not 0.5 <= confidence < 1:
        raise click.BadParameter(f"{confidence:g} does not lie between 0.5 and 1", param_hint="--confidence")
    limit = share(threshold)
    try:
        recordings = [runs for folder in folders for runs in _recordings(folder)]
    except RunError as error:
        fail(error)
    series = history(recordings, limit, confidence)
    if not series:
        fail(f"no case was measured in {', '.join(map(str, folders))}")
    told = document(series, limit, confidence)
    data = json.dumps([one.model_dump(mode="json") for one in series], indent=2) + "\n"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "history.md").write_text(render_document(told, "markdown"), encoding="utf-8")
        (out / "history.json").write_text(data, encoding="utf-8")
        draw(series, out)
    if form == "json":
        click.echo(data, nl=False)
    else:
        click.echo(render_document(told, form, colour_wanted()), nl=False)


def _recordings(folder: Path) -> list[list[Run]]:
    """The folder itself, or whatever of its sub-folders is a run or a recording."""
    from chunkbench.store import RunError, open_runs

    try:
        return [open_runs(folder)]
    except RunError:
        if not folder.is_dir():
            raise
    found = []
    for entry in sorted(folder.iterdir()):
        if (entry / "manifest.json").exists() or (entry / "1" / "manifest.json").exists():
            found.append(open_runs(entry))
    if not found:
        raise RunError(f"{folder}: neither a run, nor a recording, nor a folder of those")
    return found
