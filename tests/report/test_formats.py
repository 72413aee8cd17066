from __future__ import annotations

import csv as stdlib_csv
import io
import json as stdlib_json
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.report import build, csv, json, latex, markdown


def test_json_has_one_object_per_case_with_facts_and_figures(table3) -> None:
    found = stdlib_json.loads(json.render(build(table3)))
    assert len(found) == len(table3.cases) == 120
    assert [case["key"] for case in found] == [case.key for case in table3.cases]
    chunk = next(c for c in found if (c["implementation"], c["n_p"], c["n_s"]) == ("chunk_attn", 1024, 1024))
    assert chunk["samples_us"]
    assert chunk["peaks"][0]["read_bytes_per_s"] == 4e10
    assert chunk["paper_us"] == 56.0


def test_every_figure_follows_from_the_facts_in_the_json(table3) -> None:
    """The definitions of docs/design.md once more, from the printed facts alone."""
    found = stdlib_json.loads(json.render(build(table3)))
    base = {(c["n_p"], c["n_s"]): c for c in found if c["implementation"] == "chunk_attn"}

    def latency(case) -> float:
        return statistics.median(sum(samples) / len(samples) for samples in case["samples_us"])

    measured = [case for case in found if case["samples_us"]]
    assert len(measured) == 84
    for case in measured:
        us = latency(case)
        assert case["latency_us"] == pytest.approx(us)
        assert case["step_us"] == pytest.approx(us + 210 + 40)
        assert case["token_rate"] == pytest.approx(32e6 / us)
        assert case["ratio_to_baseline"] == pytest.approx(us / latency(base[case["n_p"], case["n_s"]]))
        bounds = [max(u / 4e10, f / 8.87e11) * 1e6 for u, f in zip(case["unique_bytes"], case["flops"], strict=True)]
        fractions = [sum(bounds) / sum(samples) for samples in case["samples_us"]]
        assert case["roofline_fraction"] == pytest.approx(statistics.median(fractions))


def test_json_knows_no_nan(make_case, make_run) -> None:
    run = make_run([make_case("chunk_attn", status="incorrect", reason="NaN in out", max_error=float("nan"))])
    (case,) = stdlib_json.loads(json.render(build(run)))
    assert case["max_error"] is None
    assert case["status"] == "incorrect"
    assert case["latency_us"] is None


def test_json_tells_what_was_expected_of_a_case(make_case, make_run) -> None:
    wanted = {"where": {}, "implementation": "chunk_attn", "metric": "speedup", "against": "naive", "bar": 1.5}
    cases = [make_case("chunk_attn", us=[10.0]), make_case("naive", us=[20.0])]
    ours, theirs = stdlib_json.loads(json.render(build(make_run(cases, expect=[wanted]))))
    assert ours["expectations"] == [
        {
            "implementation": "chunk_attn",
            "metric": "speedup",
            "against": "naive",
            "value": 2.0,
            "bar": 1.5,
            "aim": None,
            "verdict": "meets bar",
            "reason": "",
        }
    ]
    assert theirs["expectations"] == []


def test_csv_has_a_line_per_case_at_full_precision(table3) -> None:
    rows = list(stdlib_csv.DictReader(io.StringIO(csv.render(build(table3)))))
    assert len(rows) == 120
    row = next(r for r in rows if (r["implementation"], r["n_p"], r["n_s"]) == ("naive", "4096", "0"))
    assert float(row["latency_us"]) == pytest.approx(24.5 * 4128)
    assert row["paper_us"] == "1369.52"
    absent = next(r for r in rows if r["implementation"] == "xformers")
    assert (absent["status"], absent["reason"], absent["latency_us"]) == (
        "unavailable",
        "xformers has no CPU operator",
        "",
    )
    assert "samples_us" not in row


def test_markdown_shows_losses_tables_and_figure(table3) -> None:
    text = markdown.render(build(table3), "figure.png")
    assert text.startswith("# Table 3")
    assert text.index("ChunkAttn loses") < text.index("ChunkAttn against") < text.index("figure.png")
    head, rule, first = [line for line in text.splitlines() if line.startswith("|")][:3]
    assert head.count("|") == rule.count("|") == first.count("|") == 13
    assert r"PagedAttn\*" in head
    # Naive is the fastest where nothing is shared, in the invented numbers, and ChunkAttn is not.
    assert "**25,870**" in first
    assert "![" not in markdown.render(build(table3))


def test_markdown_tables_survive_any_reason_and_label(make_case, make_run) -> None:
    cases = [make_case("chunk_attn"), make_case("third", label="a|b_c*d", status="error", reason="x | y\n# z", us=[])]
    text = markdown.render(build(make_run(cases)))
    assert r"a\|b_c\*d" in text
    assert r"x \| y \# z" in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("50% of n_p & more", r"50\% of n\_p \& more"),
        ("PagedAttn*", "PagedAttn*"),
        ("~1.5x", r"\textasciitilde{}1.5x"),
        ("a\\b", r"a\textbackslash{}b"),
        ("{$x^2$} #1 <2", r"\{\$x\textasciicircum{}2\$\} \#1 \textless{}2"),
        ("decode µs", r"decode \ensuremath{\mu}s"),
    ],
)
def test_latex_escapes(text: str, escaped: str) -> None:
    assert latex.escape(text) == escaped


@given(st.text())
def test_latex_never_lets_a_special_character_through(text: str) -> None:
    rest = re.sub(r"\\(text[a-z]+\{\}|ensuremath\{\\mu\}|[&%$#_{}])", "", latex.escape(text))
    assert not set(rest) & set("\\&%$#_{}~^")


def test_latex_tables_are_well_formed(table3) -> None:
    text = latex.render(build(table3))
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 3
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 3
    spec = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert spec is not None
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 12
    assert all(row.count(" & ") + 1 == len(spec[1]) == 12 for row in rows)
    assert r"\textbf{25,870}" in rows[0]
