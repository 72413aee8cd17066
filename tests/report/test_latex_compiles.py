"""pdflatex compiles every LaTeX report with what its head names, and each table fits on its page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chunkbench.bench.store import open_run
from chunkbench.report import latex
from chunkbench.report.book import build_book
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.report.model import Column, Output, Table

PDFLATEX = shutil.which("pdflatex")
RECORDED = sorted(path.parent for path in Path(__file__).parents[2].glob("results/recorded/*/*/manifest.json"))
NASTY = (
    "[a]",
    "[2pt]",
    "*",
    "*[b]",
    'say "yes"',
    "\u03bcs \u2265 1 \u2264 2 \u2192 3 \u00b0 \u00d7 \u2013 \u2014 \u2018 \u2019 \u201c \u201d \u2026",
    *("".join(map(chr, codes)) for codes in (range(0x20, 0x7F), range(0xA0, 0x180), range(0x391, 0x3CA))),
    "\u4e2d\U0001f600",
    "--on ?` ``x'' \\\\[1cm] %^^M",
)
"""Texts that LaTeX could take for a command, or cannot print."""

pytestmark = pytest.mark.skipif(PDFLATEX is None, reason="no pdflatex here; `make readers` installs it")


def complaints(text: str, folder: Path) -> list[str]:
    """Errors, and warnings of what does not fit, of a document of the class `article`."""
    packages = dict.fromkeys(re.findall(r"^% (\\usepackage.*)$", text, re.MULTILINE))
    lines = [r"\documentclass{article}", *packages, r"\begin{document}", text, r"\end{document}"]
    (folder / "report.tex").write_text("\n".join(lines), encoding="ascii")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        return [result.stdout[-2000:]]
    assert (folder / "report.pdf").stat().st_size > 5_000
    return re.findall(r"^(?:Overfull \\hbox|LaTeX Warning: Float too large).*", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("several", [False, True])
def test_the_report_compiles(several: bool, table3, tmp_path: Path) -> None:
    report = build_book([table3, table3], table3.path) if several else build(table3)
    text = render(report, "latex")
    if several:  # each document has a head of its own: the widest page holds all
        text = re.sub(r"^% \\usepackage\[.*$", "", text, flags=re.MULTILINE)
        text = "% \\usepackage[a3paper,landscape,margin=1cm]{geometry}\n" + text
    assert complaints(text, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_recorded_run_compiles_and_fits(path: Path, tmp_path: Path) -> None:
    report = build(open_run(path))
    assert complaints(render(report, "latex"), tmp_path) == []
    assert complaints(latex.as_printed(report), tmp_path) == []


@pytest.mark.slow
def test_any_text_compiles_anywhere(tmp_path: Path) -> None:
    for text in NASTY:
        columns = (Column[str](text, lambda cell: cell, align="left"), Column[str]("two", str, (text, text)))
        table = Table(text, columns, [text, "a", text], breaks=frozenset({1}))
        output = Output(title=text, tables=(table,), statuses=(text,), footer=((text, text),), data=None)
        assert not [line for line in complaints(render(output, "latex"), tmp_path) if "Overfull" not in line], text
