"""A comparison as JUnit XML: one test for each case, under a name that stays the same."""

from __future__ import annotations

import junitparser
from junitparser.junitparser import FinalResult

from chunkbench.analysis.verdict import CaseVerdict, Comparison
from chunkbench.report.comparison.document import change


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
        test.system_out = f"{case.verdict}: {change(case)} {case.reason}".strip()
        suite.add_testcase(test)
    xml = junitparser.JUnitXml("chunkbench")
    xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text.decode()


def _result(case: CaseVerdict, comparison: Comparison) -> list[FinalResult]:
    told = f"{case.verdict}: {change(case)} {case.reason}".strip()
    fails = case.verdict in comparison.settings.fail_on
    if case.failed and fails:
        return [junitparser.Error(told, case.verdict)]
    if fails:
        return [junitparser.Failure(told, case.verdict)]
    if case.verdict in ("inconclusive", "missing", "incorrect", "slower"):
        return [junitparser.Skipped(told)]
    return []
