"""Judged cases as JUnit XML: one test for each case, with the same name in every comparison."""

from __future__ import annotations

import junitparser
from junitparser.junitparser import FinalResult

from chunkbench.report.characters import legal
from chunkbench.report.model import Check, Suite


def render(suite: Suite) -> str:
    """XML for JUnit readers. A case that fails the comparison is a failure, or an error if it is broken; suspicious
    cases are skipped tests."""
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
