"""What the commands that print reports have in common."""

from __future__ import annotations

import os
import sys
from pathlib import Path

RUNS = Path("results/runs")
"""Where runs lie unless --out says otherwise, below the current directory."""
FORMATS = ("table", "markdown", "latex", "csv", "json")


def colour_wanted() -> bool:
    """Whether standard output is a terminal that should be given colour."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
