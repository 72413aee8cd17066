"""Formats for programs: CSV and JSON of any output; JUnit XML and GitHub commands of a comparison."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import junitparser
from junitparser.junitparser import FinalResult

from chunkbench.report.model import Check, Suite, legal

_FORMULA = ("=", "+", "-", "@", "\t")
"""If a text starts with one of these characters, a spreadsheet runs it as a formula."""


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Make CSV with all digits of the values. A missing value gives an empty cell. Texts are changed so that no
    spreadsheet runs them as formulas."""
    out = StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_csv_cell, names))
    writer.writerows([_csv_cell(record.get(name)) for name in names] for record in records)
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    """The value, with an apostrophe in front if it is a text that a spreadsheet would run."""
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


def json_text(data: Any) -> str:
    """Make JSON. NaN and infinity become null, because JSON lacks them."""
    return json.dumps(_finite(data), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


def junit_xml(suite: Suite) -> str:
    """Make JUnit XML. A case of the level `failed` becomes a failure, `broken` an error, and `suspicious` a skipped
    test."""
    tests = junitparser.TestSuite(suite.name)
    for name, value in suite.properties.items():
        tests.add_property(name, value)
    for check in suite.checks:
        test = junitparser.TestCase(check.name, classname=f"chunkbench.{check.implementation}")
        message = f"{check.verdict}: {check.text}"
        test.result = _result(check, message)
        test.system_out = message
        tests.add_testcase(test)
    xml = junitparser.JUnitXml("chunkbench")
    xml.add_testsuite(tests)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    for element in xml._elem.iter():
        element.text = element.text and legal(element.text)
        element.attrib.update({name: legal(value) for name, value in element.attrib.items()})
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text.decode()


def _result(check: Check, message: str) -> list[FinalResult]:
    if check.level == "broken":
        return [junitparser.Error(message, check.verdict)]
    if check.level == "failed":
        return [junitparser.Failure(message, check.verdict)]
    return [junitparser.Skipped(message)] if check.level == "suspicious" else []


MOST_ANNOTATIONS = 10
"""GitHub shows only this number of annotations for one step. If there are more, the last annotation says how many."""


def github_commands(suite: Suite) -> str:
    """Make GitHub workflow commands, one in each line: an error for each case that fails the comparison, and a warning
    for each suspicious case."""
    marked = [check for check in suite.checks if check.level != "passed"]
    shown = marked if len(marked) <= MOST_ANNOTATIONS else marked[: MOST_ANNOTATIONS - 1]
    lines = [
        f"::{'warning' if check.level == 'suspicious' else 'error'} "
        f"title={_property(f'{check.verdict}: {check.place}')}::{_data(check.text)}"
        for check in shown
    ]
    if len(shown) < len(marked):
        lines.append(f"::notice title=chunkbench::{_data(f'{len(marked) - len(shown)} more; {suite.summary}')}")
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
