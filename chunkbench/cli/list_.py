"""`chunkbench list`: the experiments, the implementations, and the axes of a sweep."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from chunkbench.cli.output import on_terminal
from chunkbench.experiment import AXES, bundled_experiments, load_experiment, reading_order

Row = dict[str, str | int | bool]


def _experiments() -> list[Row]:
    rows: list[Row] = []
    for name in sorted(bundled_experiments(), key=reading_order):
        experiment = load_experiment(name)
        points = experiment.points("cpu", "float32")
        rows.append({"experiment": name, "points": len(points), "title": experiment.title})
    return rows


def _axes() -> list[Row]:
    return [
        {"axis": name, "meaning": axis.description, "values": axis.values, "default": axis.default_words}
        for name, axis in AXES.items()
    ]


def _implementations() -> list[Row]:
    # Importing torch takes seconds. The other lists do not need it.
    import torch

    from chunkbench.baselines.registry import REGISTRY

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
        for state in REGISTRY.survey(device)
    ]


_SUBJECTS = {"experiments": _experiments, "implementations": _implementations, "axes": _axes}


def _cell(value: str | int | bool) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


@click.command(
    "list",
    short_help="List experiments, implementations or axes.",
    epilog="""\b
    Examples:
      chunkbench list
      chunkbench list implementations
      chunkbench list axes --format json
    """,
)
@click.argument("subject", type=click.Choice(list(_SUBJECTS)), default="experiments")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(subject: str, form: str) -> None:
    """List bundled experiments (the default), implementations with their state on this machine, or the axes of a
    sweep."""
    rows = _SUBJECTS[subject]()
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo(f"no {subject} are registered; install ChunkBench (make setup)", err=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in rows[0] if rows else ():
        # Users copy the names: do not wrap them.
        table.add_column(column, no_wrap=column == subject.removesuffix("s"), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    # A pipe has no width; rich would use 80 columns.
    Console(highlight=False, markup=False, width=None if on_terminal() else 110).print(table)
