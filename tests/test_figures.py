"""Every measured figure on README and pages stands in a section that names its record; `SETTINGS` has all others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FIGURE = re.compile(
    r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?"
    r"(?:x\b|%| ?(?:ms|µs|us|ns|s|GB/s|TB/s|kB|MB|GB|[KMG]iB|[GT]FLOP/s|seconds|minutes|hours)\b)"
)
RECORD = re.compile(r"results/recorded/[\w*/.-]*[\w*]")

SETTINGS = {
    "README.md": "1.5 GB, 3 GB, 24 GB",
    "beyond.md": "14%, 1%",
    "design.md": "40 ms",
    "experiments.md": "300s, 60s, 600s, 900s, 4GiB, 20ms, 20 s, 75 s",
    "kernels.md": "8 minutes, 40 s",
    "measuring.md": "5%, 10%, 2 MB, 40%, 75%",
    "quickstart.md": "20%, 100 µs",
    "regression.md": "5%, 20%, 99%, 1%, 20 minutes, 95%, 60 s",
    "reliability.md": "1 GB, 10 s, 2%, 5%, 30 s",
    "serving.md": "25 minutes, 1 GiB, 1 MiB, 1%, 95%, 100 ms, 40 ms",
    "vllm.md": "1%",
}
"""By page: limits, defaults, sizes and durations in sections without a record. Nobody measured them as a result."""


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """(heading, text) of each section of a page, without listings."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text())
    for section in re.split(r"(?m)^(?=#)", text):
        yield section.partition("\n")[0], section


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_measured_figure_has_a_record(page: Path) -> None:
    settings = set(filter(None, SETTINGS.get(page.name, "").split(", ")))
    unrecorded = {
        figure: heading
        for heading, text in sections(page)
        if not RECORD.search(text)
        for figure in FIGURE.findall(text)
    }
    without = {figure: heading for figure, heading in unrecorded.items() if figure not in settings}
    assert not without, "name the recorded run in these sections, or take the figures away"
    assert settings <= unrecorded.keys(), "SETTINGS has figures that the page no longer has"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_records_that_a_page_names_exist(page: Path) -> None:
    for name in RECORD.findall(page.read_text()):
        assert any(ROOT.glob(name)), name


def test_each_row_on_when_sharing_pays_names_its_record() -> None:
    (text,) = (text for heading, text in sections(PAGES[0]) if heading == "## When does sharing pay?")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows
    assert [row for row in rows if not RECORD.search(row)] == []


@pytest.mark.parametrize("name", ["4096-3072", "1024-1024"])
def test_the_page_quotes_the_recorded_profiles(name: str) -> None:
    folder = ROOT / "results" / "recorded" / "epyc-zen5-2-cores" / "profiles"
    profile = json.loads((folder / f"{name}.json").read_text())
    assert " ".join(profile["limits"]) in (ROOT / "docs" / "measuring.md").read_text()
