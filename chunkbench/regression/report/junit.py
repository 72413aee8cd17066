"""A comparison as JUnit XML: one test for each case, under a name that stays the same."""

from __future__ import annotations

import re

import junitparser
from junitparser.junitparser import FinalResult

from chunkbench.regression.report.document import change
from chunkbench.regression.verdicts import CaseVerdict, Comparison

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(comparison: Comparison) -> str:
    """XML that JUnit readers take.

    What fails the comparison is a failure, or an error where HEAD itself failed; what does not, though it is not well,
    is skipped.
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
    """Without what XML 1.0 cannot hold, such as the escape sequences of a coloured message."""
    return _ILLEGAL.sub("?", text)


def _result(case: CaseVerdict, comparison: Comparison) -> list[FinalResult]:
    told = _legal(f"{case.verdict}: {change(case)} {case.reason}".strip())
    fails = case.verdict in comparison.settings.fail_on
    if case.failed and fails:
        return [junitparser.Error(told, case.verdict)]
    if fails:
        return [junitparser.Failure(told, case.verdict)]
    if case.verdict in ("inconclusive", "missing", "incorrect", "slower"):
        return [junitparser.Skipped(told)]
    return []
