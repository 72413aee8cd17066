"""A report as JSON: an array with one object per case, with all facts and all derived figures."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from chunkbench.report.report import Report


def render(report: Report) -> str:
    """One object per case, in the order of the run; `expectations` lists the outcomes of the expectations."""
    return json.dumps([_case(row.as_dict(), report) for row in report.rows], indent=1, allow_nan=False) + "\n"


def _case(values: dict[str, Any], report: Report) -> dict[str, Any]:
    expectations = [asdict(outcome) for outcome in report.outcomes if outcome.key == values["key"]]
    for outcome in expectations:
        del outcome["key"], outcome["axes"]
    return {**_finite(values), "expectations": expectations}


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinity (errors of wrong results), which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
