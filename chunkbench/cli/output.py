"""What the commands that print reports have in common."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from chunkbench.store.facts import Status

RUNS = Path("results/runs")
"""Where runs lie unless --out says otherwise, below the current directory."""
_OPTIONS = {
    "resume": "--resume goes on",
    "resume or elsewhere": "--resume goes on; --out DIR chooses",
    "elsewhere": "--out DIR chooses",
    "start anew": "leave --resume out",
}
"""Remedy of a `RunError` -> the options of commands."""
FORMATS = ("table", "markdown", "latex", "csv", "json")


def new_run(name: str) -> Path:
    """Where a run that begins now is kept."""
    return RUNS / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"


def fail(problem: str | Exception) -> NoReturn:
    """Say what is wrong, in the name of the command that is running, and exit with 2."""
    click.echo(f"chunkbench {click.get_current_context().info_name}: {explain(problem)}", err=True)
    raise SystemExit(2)


def explain(problem: str | Exception) -> str:
    """A message, with the options that mend it."""
    options = _OPTIONS.get(getattr(problem, "remedy", None) or "", "")
    return f"{problem} ({options})" if options else str(problem)


def run_exit_code(statuses: Iterable[Status]) -> int:
    """What a measurement means for the process that made it: 3 where a case failed, else 0."""
    from chunkbench.store.facts import FAILED

    return 3 if any(status in FAILED for status in statuses) else 0


def on_terminal() -> bool:
    """Whether standard output is a terminal; it may also be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def colour_wanted() -> bool:
    """Whether standard output is a terminal that should be given colour."""
    return on_terminal() and "NO_COLOR" not in os.environ
