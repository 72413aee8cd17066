"""CSV: one line for each record, for spreadsheets and scripts."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """The values at full precision; a cell is empty where there is no value."""
    out = StringIO()
    names = dict.fromkeys(name for record in records for name in record)
    writer = csv.DictWriter(out, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()
