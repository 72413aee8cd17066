"""Judged cases as JUnit XML: one test for each case, with the same name in every comparison."""

from __future__ import annotations

import re

import junitparser
from junitparser.junitparser import FinalResult

from chunkbench.report.model import Check, Suite

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(suite: Suite) -> str:
    """XML for JUnit readers. A case that fails the comparison is a failure, or an error if it is broken; suspicious
    cases are skipped tests."""
    tests = junitparser.TestSuite(suite.name)
    for name, value in suite.properties.items():
        tests.add_property(name, value)
    for check in suite.checks:
        test = junitparser.TestCase(check.name, classname=f"chunkbench.{check.implementation}")
        message = _legal(f"{check.verdict}: {check.text}")
        test.result = _result(check, message)
        test.system_out = message
        tests.add_testcase(test)
    xml = junitparser.JUnitXml("chunkbench")
    xml.add_testsuite(tests)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text.decode()


def _legal(text: str) -> str:
    """The text without characters that XML 1.0 forbids, such as the escape sequences of a coloured message."""
    return _ILLEGAL.sub("?", text)


def _result(check: Check, message: str) -> list[FinalResult]:
    if check.level == "broken":
        return [junitparser.Error(message, check.verdict)]
    if check.level == "failed":
        return [junitparser.Failure(message, check.verdict)]
    return [junitparser.Skipped(message)] if check.level == "suspicious" else []
