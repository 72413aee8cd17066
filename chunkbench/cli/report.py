"""`chunkbench report RUN`: everything that follows from a run, without measuring again."""

from __future__ import annotations

from pathlib import Path

import click

from chunkbench.cli.output import FORMATS, RUNS, colour_wanted, fail

_HELP = """Rebuild the tables and the figure of RUN from its facts; nothing is measured.

RUN is a run directory, the cases.jsonl inside it, or `latest`: the newest one below results/runs.

Without --format and --out, report.md, table.csv, table.tex, report.json, figure.png and figure.svg are written into
the run directory and the table is printed. With either, only that one format is produced and the directory is left
as it is.
"""

_EXAMPLES = """\b
Examples:
  chunkbench report latest
  chunkbench report results/runs/table3-20250101T000000Z --format markdown
  chunkbench report latest --format json --out table3.json
"""


@click.command(name="report", help=_HELP, epilog=_EXAMPLES, short_help="Rebuild tables and figure of a run.")
@click.argument("run", metavar="RUN")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Print this format.  [default: table]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to FILE instead of printing.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the table, nor which files were written.")
def command(run: str, form: str | None, out: Path | None, quiet: bool) -> None:
    from chunkbench.report import build, render, write_all
    from chunkbench.store import RunError, latest_run, open_run

    try:
        opened = open_run(latest_run(RUNS) if run == "latest" else run)
    except RunError as error:
        fail(str(error))
    if not opened.cases:
        fail(f"{opened.path}: no case has been measured yet; `chunkbench run ... --resume` goes on with it")
    report = build(opened)
    colour = out is None and colour_wanted()
    if form is None and out is None:
        try:
            written = write_all(opened, report)
        except OSError as error:
            fail(f"{opened.path}: cannot be written: {error.strerror}; --format prints without writing there")
        if not quiet:
            click.echo(render(report, "table", colour), nl=False)
            click.echo("\nwritten: " + " ".join(str(path) for path in written), err=True)
        return
    text = render(report, form or "table", colour)
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{out}: cannot be written: {error.strerror}")
    if not quiet:
        click.echo(f"written: {out}", err=True)
