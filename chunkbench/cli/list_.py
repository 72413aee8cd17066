"""`chunkbench list`: lists experiments, implementations, and the axes of a sweep."""

from __future__ import annotations

from collections.abc import Container
from functools import partial

import click

from chunkbench.bench import workload
from chunkbench.bench.experiment import AXES, bundled_experiments, load_experiment, reading_order
from chunkbench.cli.output import format_option, show

Row = dict[str, str | int | bool]


def _experiments(kind: str) -> list[Row]:
    rows: list[Row] = []
    for name in sorted(bundled_experiments(), key=reading_order):
        experiment = load_experiment(name)
        if kind not in ("", experiment.kind):
            continue
        points = experiment.points("cpu", "float32")
        rows.append({"experiment": name, "points": len(points), "title": experiment.title})
    return rows


def _axes(kind: str) -> list[Row]:
    known = workload.get(kind).point.axes() if kind else AXES
    return [
        {"axis": name, "meaning": axis.description, "values": axis.values, "default": axis.default_words}
        for name, axis in AXES.items()
        if name in known
    ]


def _implementations(kind: str) -> list[Row]:
    # Importing torch takes seconds. The other lists do not need it.
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [
        {
            "implementation": state.id,
            "label": state.label,
            "device": device,
            "available": state.answer.ok,
            "reason": state.answer.reason,
            "remedy": state.answer.remedy,
        }
        for state in workload.get(kind or workload.default()).implementations().survey(device)
    ]


_SUBJECTS = {"experiments": _experiments, "implementations": _implementations, "axes": _axes}


@click.command(
    "list",
    epilog="""\b
    Examples:
      chunkbench list
      chunkbench list implementations
      chunkbench list implementations --kind serving
      chunkbench list axes --kind replay --format json
    """,
)
@click.argument("subject", type=click.Choice(list(_SUBJECTS)), default="experiments")
@click.option(
    "--kind", default="", help="List only this kind of work.  [default: all kinds; for implementations: decode]"
)
@format_option("documents", "records", "data")
def command(subject: str, kind: str, form: str) -> None:
    """List bundled experiments (the default), implementations with their state on this machine, or the axes of a
    sweep."""
    from chunkbench.report.model import Column, Output, Table

    if kind and kind not in workload.names():
        raise click.BadParameter(f"{kind!r} is none of {', '.join(workload.names())}", param_hint="--kind")
    rows = _SUBJECTS[subject](kind)
    if not rows:
        lack = (
            f"no {subject} of `kind: {kind}`"
            if kind
            else f"no {subject} are registered; install ChunkBench (make setup)"
        )
        click.echo(lack, err=True)

    def table(title: str, shown: list[Row], left_out: Container[str] = ()) -> Table:
        names = [name for name in (rows[0] if rows else ()) if name not in left_out]
        # Users copy the names, which are in the first column: do not wrap them.
        columns = [Column[Row](name, partial(_cell, name), align="left", wrap=name != names[0]) for name in names]
        return Table(title, tuple(columns), shown)

    if subject == "implementations":
        usable, others = ([row for row in rows if row["available"] is state] for state in (True, False))
        tables = [
            table("Can run on this machine", usable, {"available", "reason", "remedy"}),
            table("Cannot run on this machine", others, {"device", "available"}),
        ]
    else:
        tables = [table("", rows)]
    show(Output(tables=tuple(one for one in tables if one.items), data=rows), form)


def _cell(name: str, row: Row) -> str:
    return str(row[name])
