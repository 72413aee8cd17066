"""Reports of comparisons, read by real parsers where there are any."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import junitparser
import pytest

from chunkbench.report import formats
from chunkbench.report.compare import document as document_module
from chunkbench.report.compare.document import PULL_REQUEST_BYTES, STEP_SUMMARY_BYTES, output, step_summary, write_all
from chunkbench.report.compare.verdicts import CaseVerdict, Comparison, Settings, SideSummary, Summary, worst_first
from chunkbench.report.machine_formats import MOST_ANNOTATIONS
from chunkbench.report.model import Document


def render(compared: Comparison, form: str) -> str:
    return formats.render(output(compared, form), form)


AXES = {"n_p": 1024, "n_s": 512, "tree": None, "dtype": "float32"}


def case(verdict: str, number: int = 0, **changes: Any) -> CaseVerdict:
    ratio = {"slower": 1.2, "faster": 0.8}.get(verdict, 1.0)
    values: dict[str, Any] = {
        "key": f"k{verdict}{number}",
        "name": f"chunk_attn[n_p=1024,n_s={number}]",
        "implementation": "chunk_attn",
        "label": "ChunkAttn",
        "axes": AXES | {"n_s": number},
        "metric": "latency",
        "verdict": verdict,
        "base": 100.0,
        "head": 100.0 * ratio,
        "ratio": ratio,
        "low": ratio * 0.98,
        "high": ratio * 1.02,
        "base_units": 30,
        "head_units": 10,
        "command": "chunkbench regress --base main --only chunk_attn",
    }
    return CaseVerdict(**(values | changes))


def comparison(*cases: CaseVerdict, exit_code: int = 1) -> Comparison:
    side = SideSummary(
        path="a", experiment="e", commit="c0ffee", version="0.1.0", started_at=None, cases=1, processes=10, rounds=9
    )
    settings = Settings(
        metric="latency", threshold=0.05, confidence=0.99, case_confidence=0.9999, timed_cases=len(cases),
        interleaved=False, cross_machine=False, fail_on=("slower", "incorrect", "missing"),
    )  # fmt: skip
    summary = Summary(implementation="chunk_attn", label="ChunkAttn", cases=1, ratio=1.1, low=1.0, high=1.2)
    return Comparison(
        base=side, head=side, settings=settings, exit_code=exit_code, counts={"slower": 1}, summaries=(summary,),
        warnings=("BASE: <torn> | line",), differences=(), cases=worst_first(cases), unmeasured=2,
        command="chunkbench compare a b",
    )  # fmt: skip


NONE = {"ratio": None, "low": None, "high": None}
ALL = (
    case("same", 1),
    case("new", 2, base=None, **NONE),
    case("faster", 3),
    case("inconclusive", 4, reason="the threshold lies inside the interval"),
    case("missing", 5, head=None, reason="HEAD: crashed: killed", failed=True, **NONE),
    case("slower", 6),
    case("incorrect", 7, head=None, reason="incorrect: \x1b[31mmax_error\x00 1", failed=True, **NONE),
)


def test_junit_is_read_by_a_real_parser(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(render(comparison(*ALL), "junit"))
    suite = next(iter(junitparser.JUnitXml.fromfile(str(path))))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (7, 1, 2, 1)
    results = {test.name: [type(result).__name__ for result in test.result] for test in suite}
    assert results["chunk_attn[n_p=1024,n_s=6]"] == ["Failure"]
    assert results["chunk_attn[n_p=1024,n_s=7]"] == ["Error"]
    assert results["chunk_attn[n_p=1024,n_s=1]"] == []


def test_text_lists_the_worst_first_and_fits_the_terminal() -> None:
    text = render(comparison(*ALL), "table")
    assert max(map(len, text.splitlines())) <= 100
    lines = [line.split()[0] for line in text.splitlines() if "chunk_attn  " in line]
    assert lines[:7] == ["incorrect", "slower", "missing", "inconclusive", "faster", "new", "same"]
    assert "the threshold lies inside the interval. To measure it again: chunkbench regress" in " ".join(text.split())
    assert "2 cases measured by neither" in text


@pytest.mark.parametrize("number", [1, 1500])
def test_markdown_keeps_to_the_size_limit_and_keeps_the_worst(number: int) -> None:
    many = comparison(*(case("same", n) for n in range(number)), case("slower", 10**6, reason="x" * 200))
    for text, limit in ((render(many, "markdown"), PULL_REQUEST_BYTES), (step_summary(many), STEP_SUMMARY_BYTES)):
        assert len(text.encode()) <= limit < 1 << 20
        assert "1000000" in text
    assert PULL_REQUEST_BYTES < 1 << 16


def test_github_shows_ten_annotations_at_the_most() -> None:
    lines = render(comparison(*(case("slower", n) for n in range(40))), "github").splitlines()
    assert len(lines) == MOST_ANNOTATIONS == 10
    assert lines[0].startswith("::error title=slower%3A chunk_attn at n_s=0::1.200x (1.176x to 1.224x)")
    assert lines[-1].startswith("::notice title=chunkbench::31 more;")
    assert render(comparison(case("same")), "github") == ""
    warned = render(comparison(case("inconclusive", reason="100% sure\nnot")), "github")
    assert warned.startswith("::warning ")
    assert "100%25 sure%0Anot" in warned


def test_the_terminal_shows_one_screen_with_the_worst() -> None:
    many = comparison(*(case("inconclusive", n) for n in range(300)), case("slower", 10**6))
    lines = render(many, "table").splitlines()
    assert len(lines) < 100
    text = " ".join(" ".join(lines).split())
    assert "chunk_attn at n_s=1000000 is slower" in text
    assert "261 more cases, none worse than these: --format json prints all, --out FOLDER writes them" in text
    assert "more cases with notes: --format json prints all, --out FOLDER writes them" in text


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_no_report_points_to_a_file_that_may_not_exist(form: str) -> None:
    """A file of the comparison exists with --out only, so its name comes with that option."""
    many = comparison(*(case("inconclusive", n, reason="noise " * 20) for n in range(900)))
    text = " ".join(render(many, form).split())
    named = re.findall(r"[^:;.]*comparison\.(?:md|json|txt)", text)
    assert named
    assert all("--out FOLDER writes" in words for words in named)


def test_other_files_are_written_if_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(document: Document, form: str) -> str:
        if form == "json":
            raise RuntimeError("boom")
        return formats.render(document, form)

    monkeypatch.setattr(document_module, "render", broken)
    with pytest.raises(RuntimeError, match="boom"):
        write_all(comparison(*ALL), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "comparison.txt", "comparison.md", "comparison.xml", "annotations.txt", "summary.md",
    }  # fmt: skip
