"""A report as CSV: one line per case, for spreadsheets and scripts."""

from __future__ import annotations

import csv
from dataclasses import fields
from io import StringIO
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from chunkbench.analysis.derive import Derived
from chunkbench.experiment.axes import AXES
from chunkbench.report.report import Report
from chunkbench.store.facts import CaseFacts

_SCALARS = (str, int, float, bool, type(None))


def _single(annotation: Any) -> bool:
    """Whether values of this type fit a cell."""
    if get_origin(annotation) is Literal:
        return True
    parts = get_args(annotation)
    return all(map(_single, parts)) if get_origin(annotation) in (Union, UnionType) else annotation in _SCALARS


COLUMNS = (
    *(name for name, field in CaseFacts.model_fields.items() if name in AXES or _single(field.annotation)),
    *(field.name for field in fields(Derived)),
)
"""Axes, facts of one value each, derived figures. Other facts are in `cases.jsonl` and in the JSON report."""


def render(report: Report) -> str:
    """Every single-valued fact and every derived figure at full precision; empty where there is none."""
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    rows = [row for group in report.groups for row in group.rows.values()]
    writer.writerows({**row.as_dict(), "model": row.facts.model} for row in rows)  # its name, not its shape
    return out.getvalue()
