"""A report as CSV: one line per case, for spreadsheets and scripts."""

from __future__ import annotations

import csv
from dataclasses import fields
from io import StringIO
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from chunkbench.analysis.derive import Derived
from chunkbench.experiment.axes import AXES
from chunkbench.report.report import Report
from chunkbench.store.facts import CaseFacts

_SCALARS = (str, int, float, bool, type(None))


def _single(annotation: Any) -> bool:
    """Whether a value of this type is a single one, which fits a cell."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _single(parts[0])
    if origin in (Union, UnionType):
        return all(map(_single, parts))
    return origin is Literal or annotation in _SCALARS


COLUMNS = (
    *(name for name, field in CaseFacts.model_fields.items() if name in AXES or _single(field.annotation)),
    *(field.name for field in fields(Derived)),
)
"""Axes, facts with a single value, derived figures. All other facts are in `cases.jsonl` and in the JSON report."""


def render(report: Report) -> str:
    """One line per case with `COLUMNS` at full precision; a cell is empty where there is no value."""
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    rows = [row for group in report.groups for row in group.rows.values()]
    writer.writerows({**row.as_dict(), "model": row.facts.model} for row in rows)  # the model's name, not its shape
    return out.getvalue()
