"""What the commands that print reports have in common."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import click

RUNS = Path("results/runs")
"""Where runs lie unless --out says otherwise, below the current directory."""
FORMATS = ("table", "markdown", "latex", "csv", "json")


def new_run(name: str) -> Path:
    """Where a run that begins now is kept."""
    return RUNS / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"


def fail(message: str) -> NoReturn:
    """Say what is wrong, in the name of the command that is running, and exit with 2."""
    click.echo(f"chunkbench {click.get_current_context().info_name}: {message}", err=True)
    raise SystemExit(2)


def on_terminal() -> bool:
    """Whether standard output is a terminal; it may also be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def colour_wanted() -> bool:
    """Whether standard output is a terminal that should be given colour."""
    return on_terminal() and "NO_COLOR" not in os.environ
