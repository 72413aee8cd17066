"""pdflatex compiles the LaTeX report."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from chunkbench.report import build, build_book, render

PDFLATEX = shutil.which("pdflatex")
DOCUMENT = r"""\documentclass{article}
\usepackage[a3paper,landscape,margin=1cm]{geometry}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


@pytest.fixture(params=["one", "several"])
def text(request, table3) -> str:
    if request.param == "one":
        return render(build(table3), "latex")
    return render(build_book([table3, table3], table3.path), "latex")


@pytest.mark.skipif(PDFLATEX is None, reason="no pdflatex here; `make readers` installs it")
def test_the_report_compiles(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.tex").write_text(DOCUMENT % text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert result.returncode == 0, result.stdout[-2000:]
    assert (tmp_path / "report.pdf").stat().st_size > 10_000
