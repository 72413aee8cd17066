"""A comparison as JUnit XML: one test for each case, with the same name in every comparison."""

from __future__ import annotations

import re

import junitparser
from junitparser.junitparser import FinalResult

from chunkbench.regression.report.document import change
from chunkbench.regression.verdicts import CaseVerdict, Comparison

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(comparison: Comparison) -> str:
    """XML for JUnit readers.

    A case that fails the comparison is a failure, or an error if HEAD itself failed. Other bad verdicts are skipped
    tests.
    """
    suite = junitparser.TestSuite(f"chunkbench compare {comparison.head.experiment}".strip())
    for name in ("base", "head"):
        side = getattr(comparison, name)
        suite.add_property(name, f"{side.path} {side.commit or side.version}")
    for case in comparison.cases:
        metric = "" if case.metric == "latency" else f" {case.metric}"
        test = junitparser.TestCase(f"{case.name}{metric}", classname=f"chunkbench.{case.implementation}")
        test.result = _result(case, comparison)
        test.system_out = _legal(f"{case.verdict}: {change(case)} {case.reason}".strip())
        suite.add_testcase(test)
    xml = junitparser.JUnitXml("chunkbench")
    xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text.decode()


def _legal(text: str) -> str:
    """The text without characters that XML 1.0 forbids, such as the escape sequences of a coloured message."""
    return _ILLEGAL.sub("?", text)


def _result(case: CaseVerdict, comparison: Comparison) -> list[FinalResult]:
    message = _legal(f"{case.verdict}: {change(case)} {case.reason}".strip())
    fails = case.verdict in comparison.settings.fail_on
    if case.failed and fails:
        return [junitparser.Error(message, case.verdict)]
    if fails:
        return [junitparser.Failure(message, case.verdict)]
    if case.verdict in ("inconclusive", "missing", "incorrect", "slower"):
        return [junitparser.Skipped(message)]
    return []
