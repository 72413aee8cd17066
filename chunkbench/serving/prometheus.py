"""Pages for Prometheus, in its text format."""

from __future__ import annotations

import re


def sum_of(metrics: str, name: str) -> float | None:
    """Sum of the samples of a metric; None if there is none."""
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, found)) if found else None
