"""`chunkbench validate`: checks experiment files, and counts their points and cases."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from chunkbench.bench.experiment import Experiment, ExperimentError, json_schema, load_experiment
from chunkbench.bench.experiment.terms import Device


def _counts(experiment: Experiment) -> tuple[int, int]:
    """Numbers of points and cases. They are the same for every device and dtype that `auto` can mean."""
    device: Device = "cpu" if experiment.device == "auto" else experiment.device
    points = experiment.points(device, "float32")
    return len(points), sum(len(experiment.cases(point)) for point in points)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@click.command(
    "validate",
    epilog="""\b
    Examples:
      chunkbench validate experiments/table3.yaml
      chunkbench validate table3 smoke
      chunkbench validate --format json mine.yaml
      chunkbench validate --schema > experiment.schema.json
    """,
)
@click.argument("files", metavar="FILE...", nargs=-1)
@click.option("--schema", is_flag=True, help="Print the JSON schema of experiment files, for editors.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about valid files.")
def command(files: tuple[str, ...], schema: bool, form: str, quiet: bool) -> None:
    """Check experiment files and count their points and cases.

    FILE is a YAML file or the name of a bundled experiment. Every problem of every file is printed with its place;
    the exit code is then 2.
    """
    if schema:
        if files:
            raise click.UsageError("--schema takes no FILE")
        click.echo(json.dumps(json_schema(), indent=2))
        return
    if not files:
        raise click.UsageError("missing FILE (or --schema)")
    results: list[dict[str, Any]] = []
    for file in files:
        try:
            points, cases = _counts(load_experiment(file))
        except ExperimentError as error:
            results.append({"file": file, "valid": False, "problems": [asdict(problem) for problem in error.problems]})
            if form == "text":
                click.echo(str(error), err=True)
        else:
            results.append({"file": file, "valid": True, "points": points, "cases": cases, "problems": []})
            if form == "text" and not quiet:
                click.echo(f"{file}: valid, {_plural(points, 'point')}, {_plural(cases, 'case')}")
    if form == "json":
        click.echo(json.dumps(results, indent=2))
    if not all(result["valid"] for result in results):
        sys.exit(2)
