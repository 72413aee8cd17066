"""Formats of a report: JSON, CSV, Markdown and LaTeX, which pdflatex compiles."""

from __future__ import annotations

import csv as stdlib_csv
import io
import json as stdlib_json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.store import open_run
from chunkbench.report import latex
from chunkbench.report.book import build_book
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.report.model import Column, Output, Table

_CAPITALS = r"\ensuremath{\Delta}\ensuremath{\lambda}\ensuremath{\Lambda}"


def test_json_has_null_for_nan(make_case, make_run) -> None:
    run = make_run([make_case("chunk_attn", status="incorrect", reason="NaN in out", max_error=float("nan"))])
    (case,) = stdlib_json.loads(render(build(run), "json"))
    assert case["max_error"] is None
    assert case["status"] == "incorrect"
    assert case["latency_us"] is None


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+2", "'=1+2"),
        ("+a", "'+a"),
        ("-", "'-"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\n=1"),
        ("a\r=1", "a\n=1"),
        ("a\r\nb", "a\nb"),
        (" =1", "' =1"),
        ("a=1", "a=1"),
        ("", ""),
        (None, ""),
        (-1.5, "-1.5"),
        (float("-inf"), "-inf"),
        ("-1.5", "-1.5"),
        ("+2e6", "+2e6"),
        (["=1"], "['=1']"),
    ],
)
def test_csv_has_no_formula(value: Any, cell: str) -> None:
    text = render(Output(data=[{"group": "g", "value": value}]), "csv")
    assert list(stdlib_csv.reader(io.StringIO(text, newline=""))) == [["group", "value"], ["g", cell]]
    if isinstance(value, str) and value:
        assert next(stdlib_csv.reader(io.StringIO(render(Output(data=[{value: 1}]), "csv"), newline=""))) == [cell]


def test_markdown_tables_survive_any_reason_and_label(make_case, make_run) -> None:
    cases = [make_case("chunk_attn"), make_case("third", label="a|b_c*d", status="error", reason="x | y\n# z", us=[])]
    text = render(build(make_run(cases)), "markdown")
    assert r"a\|b_c\*d" in text
    assert r"x \| y \# z" in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("50% of n_p & more", r"50\% of n\_p \& more"),
        ("~1.5x", r"\textasciitilde{}1.5x"),
        ("a\\b", r"a\textbackslash{}b"),
        ("{$x^2$} #1 <2", r"\{\$x\textasciicircum{}2\$\} \#1 \textless{}2"),
        ("decode µs", r"decode \ensuremath{\mu}s"),
        ("\u03bcs \u2265 1 \u2192 2", r"\ensuremath{\mu}s \ensuremath{\ge} 1 \ensuremath{\rightarrow} 2"),
        ("\u03b1\u03c9 \u0394\u03bb\u039b", " ".join([r"\ensuremath{\alpha}\ensuremath{\omega}", _CAPITALS])),
        ('say "yes"', "say ''yes''"),
        ("chunkbench --on ray", r"chunkbench -{}-on ray"),
        ("1\u20132", "1--2"),
        ("Gr\u00f6\u00dfe, na\u00efve", r"Gr\"{o}\ss{}e, na\"{\i}ve"),
        ("o\u0308", r"\"{o}"),
        ("\u4e2d", "[U+4E2D]"),
        ("a\x1b\ud800", "a??"),
    ],
)
def test_latex_escapes(text: str, escaped: str) -> None:
    assert latex.escape(text) == escaped


@given(st.text())
def test_latex_escapes_every_special_character(text: str) -> None:
    escaped = latex.escape(text)
    assert escaped.isascii()
    unescaped = re.sub(r"\\(text[a-z]+\{\}|ensuremath\{[\\^a-zA-Z0-9-]+\}|[a-zA-Z]{1,5}(\{\})?|[^a-zA-Z])", "", escaped)
    unescaped = re.sub(r"\{\}|\{[a-zA-Z]?\}", "", unescaped)
    assert not set(unescaped) & set('\\&%$#_{}~^"')


def one_column(*texts: str, heading: str = "name", breaks: Iterable[int] = ()) -> Output:
    columns = (Column[str](heading, lambda text: text, align="left"),)
    return Output(tables=(Table("Names", columns, texts, breaks=frozenset(breaks)),), data=None)


@pytest.mark.parametrize("text", ["[a]", "*", "[", "*[2pt]"])
def test_latex_takes_no_cell_for_an_argument(text: str) -> None:
    lines = [line.strip() for line in render(one_column("a", text, heading=text, breaks=[0]), "latex").splitlines()]
    assert lines.count(rf"{{}}{text} \\") == 2  # behind \toprule and \addlinespace


@pytest.mark.parametrize(
    ("characters", "needed"), [(60, None), (100, "a4paper"), (200, "a3paper"), (300, "leave columns out")]
)
def test_the_head_of_latex_names_a_page_that_is_wide_enough(characters: int, needed: str | None) -> None:
    head = render(one_column("x" * characters), "latex").partition(r"\begin")[0]
    assert r"\usepackage{booktabs}" in head
    assert needed in head if needed else "geometry" not in head


def test_two_machines_have_rows_of_their_own_and_no_ratio_crosses_them(make_case, make_run) -> None:
    """Naive over ChunkAttn is 3 on one machine and 2 on the other. Across the machines it would be 6 or 1."""
    cases = [
        make_case(name, machine=machine, us=[us] * 3)
        for machine, naive, chunk in (("slow", 600.0, 200.0), ("fast", 200.0, 100.0))
        for name, us in (("naive", naive), ("chunk_attn", chunk))
    ]
    report = build(make_run(cases))
    ratios = {
        row.facts.machine: row.derived.ratio_to_baseline for row in report.rows if row.facts.implementation == "naive"
    }
    assert ratios == {"slow": pytest.approx(3.0), "fast": pytest.approx(2.0)}
    text = render(report, "table")
    assert "machine" in text
    assert re.search(r"fast.*\n(.*\n)*.*slow", text)


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
compiles = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here; `make readers` installs it")


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


@compiles
@pytest.mark.parametrize("several", [False, True])
def test_the_report_compiles(several: bool, table3, tmp_path: Path) -> None:
    report = build_book([table3, table3], table3.path) if several else build(table3)
    text = render(report, "latex")
    if several:  # each document has a head of its own: the widest page holds all
        text = re.sub(r"^% \\usepackage\[.*$", "", text, flags=re.MULTILINE)
        text = "% \\usepackage[a3paper,landscape,margin=1cm]{geometry}\n" + text
    assert complaints(text, tmp_path) == []


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_recorded_run_compiles_and_fits(path: Path, tmp_path: Path) -> None:
    report = build(open_run(path))
    assert complaints(render(report, "latex"), tmp_path) == []
    assert complaints(latex.as_printed(report), tmp_path) == []


@compiles
@pytest.mark.slow
def test_any_text_compiles_anywhere(tmp_path: Path) -> None:
    for text in NASTY:
        columns = (Column[str](text, lambda cell: cell, align="left"), Column[str]("two", str, (text, text)))
        table = Table(text, columns, [text, "a", text], breaks=frozenset({1}))
        output = Output(title=text, tables=(table,), statuses=(text,), footer=((text, text),), data=None)
        assert not [line for line in complaints(render(output, "latex"), tmp_path) if "Overfull" not in line], text
