"""CSV: one line for each record, for spreadsheets and scripts."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t")
"""How a text begins that a spreadsheet runs as a formula."""


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """The values at full precision; a cell is empty where there is no value, and no cell is a formula."""
    out = StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows([_cell(record.get(name)) for name in names] for record in records)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """The value; behind an apostrophe, if it is a text that a spreadsheet would run."""
    if value is None or isinstance(value, int | float):
        return value
    text = str(value).replace("\r\n", "\n").replace("\r", "\n")  # the writer quotes no "\r", which would end the row
    return f"'{text}" if text.lstrip(" \n").startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
