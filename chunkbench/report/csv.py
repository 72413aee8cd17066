"""A report as CSV: one line per case, for spreadsheets and scripts."""

from __future__ import annotations

import csv
from dataclasses import fields
from io import StringIO

from chunkbench.analysis.derive import Derived
from chunkbench.report.model import Report
from chunkbench.store.facts import CaseFacts

_LISTS = frozenset(
    {
        "samples_us",
        "append_samples_us",
        "plan_samples_us",
        "steps",
        "groups",
        "peaks",
        "yardsticks",
        "noise",
        "unique_bytes",
        "read_bytes",
        "flops",
    }
)
"""Facts with more than one value; they are in `cases.jsonl` and in the JSON report."""

COLUMNS = (
    *(name for name in CaseFacts.model_fields if name not in _LISTS),
    *(field.name for field in fields(Derived)),
)


def render(report: Report) -> str:
    """Every single-valued fact and every derived figure at full precision; empty where there is none."""
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    rows = [row for group in report.groups for row in group.rows.values()]
    writer.writerows({**row.as_dict(), "model": row.facts.model} for row in rows)  # its name, not its shape
    return out.getvalue()
