"""The runs that the README quotes: they can be read, are whole, and say what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkbench.report import build_book
from chunkbench.report.book import Book
from chunkbench.runner.reproduce import EXPERIMENTS
from chunkbench.store import open_run

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "results" / "recorded"
FOLDER = RECORDED / "epyc-zen3-2-cores"
RUNS = sorted(path.parent for path in RECORDED.glob("*/*/manifest.json"))


@pytest.fixture(scope="module")
def book() -> Book:
    return build_book([open_run(FOLDER / name) for name in EXPERIMENTS], ROOT)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_recorded_run_is_whole(path: Path) -> None:
    run = open_run(path)
    assert run.manifest["interrupted"] is False
    assert run.manifest["git"]["dirty"] is False
    assert not run.torn
    assert {case.status for case in run.cases} <= {"ok", "noisy", "unavailable"}
    assert path.name == "memory" or all(case.samples_us for case in run.cases if case.status in ("ok", "noisy"))


def test_the_readme_says_what_they_say(book: Book) -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    summary, *runs, _ = book.documents()
    assert summary.headline in text
    for document in runs:
        assert f"**{document.title}**: {document.losses} {document.headline}".replace(":  ", ": ") in text
    for one in book.claims:
        assert f"| {one.id} |" not in text or f"| {one.id} | {one.verdict} |" in text


def test_the_readme_says_what_table_3_on_avx512_bf16_says() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    book = build_book([open_run(RECORDED / "epyc-zen5-2-cores" / "table3")], ROOT)
    (document,) = [one for one in book.documents() if one.title.startswith("Table 3")]
    assert f"{document.losses} {document.headline}" in text
