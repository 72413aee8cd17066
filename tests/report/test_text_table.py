"""Tables as text: numbers, widths, footers, output."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from chunkbench.bench.store import Manifest
from chunkbench.report import text_table
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.report.model import Cell, Check, Column, Output, Suite, Table
from chunkbench.report.numbers import megabytes, micros, percent, significant, span, times
from chunkbench.report.text_table import Screen

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def lines_of(run) -> list[str]:
    return text_table.render(build(run)).splitlines()


def test_statuses_are_words_and_each_reason_appears_once(make_case, make_run) -> None:
    failures = {
        "naive": ("error", "RuntimeError: no luck"),
        "flash_attn": ("timeout", "40 s a step, the limit is 10 s"),
        "vllm_paged_attn": ("crashed", "signal 11"),
        "shared_prefix_matmul": ("incorrect", "NaN in out"),
        "paged_attn": ("unsupported", "head_dim 80"),
        "third_party": ("oom", "predicted: needs 40.1 GiB of 20 GiB"),
    }
    cases = [make_case("chunk_attn", n_s=n_s) for n_s in (0, 512)]
    for name, (status, reason) in failures.items():
        cases += [make_case(name, n_s=n_s, status=status, reason=reason, us=[]) for n_s in (0, 512)]
    text = text_table.render(build(make_run(cases)))
    assert "error timeout unsupp. crashed wrong oom" in " ".join(text.split())
    for _, reason in failures.values():
        assert text.count(reason) == 1
    assert "wrong (incorrect) at every point: NaN in out" in text


def test_reasons_that_differ_only_in_figures_are_one_reason(make_case, make_run) -> None:
    cases = [make_case("chunk_attn", n_s=n_s) for n_s in (0, 256, 512)]
    cases += [
        make_case("naive", n_s=n_s, status="oom", reason=f"needs {gigabytes} GiB", us=[])
        for n_s, gigabytes in ((0, 40.5), (256, 30))
    ]
    text = text_table.render(build(make_run(cases)))
    assert text.count("needs") == 1
    assert "Naive: oom at 0, 256 (2 of 3 points): needs 40.5 GiB (figures of the first" in text


def test_colour_only_when_asked_for(table3) -> None:
    report = build(table3)
    plain, coloured = text_table.render(report), text_table.render(report, text_table.Screen(colour=True))
    assert not ANSI.search(plain)
    assert ANSI.search(coloured)
    assert ANSI.sub("", coloured).split() == plain.split()


def test_brackets_in_reasons_are_text_not_markup(make_case, make_run) -> None:
    cases = [make_case("chunk_attn"), make_case("naive", status="error", reason="[red]index [0][/red] :bug:", us=[])]
    assert "[red]index [0][/red] :bug:" in text_table.render(build(make_run(cases)))


@pytest.mark.parametrize("missing", ["machines", "git", "chunkbench_version", "experiment", "points"])
def test_a_manifest_without_a_field_still_renders(table3, missing: str) -> None:
    values = table3.manifest.model_dump(mode="json")
    del values[missing]
    table3.manifest = Manifest.model_validate(values)
    assert "Latency per decode step" in "\n".join(lines_of(table3))


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (significant(9.99996), "10.00"),
        (significant(999.96), "1,000"),
        (significant(float("nan")), "-"),
        (times(9.996), "10.0x"),
        (times(99.96), "100x"),
        (percent(0.0996), "10%"),
        (percent(4e-4), "<0.1%"),
        *((missing, "-") for missing in (micros(None), times(None), percent(None), megabytes(None), span(None, 1.0))),
    ],
)
def test_numbers(shown: str, text: str) -> None:
    assert shown == text


@given(st.floats(1e-3, 1e9))
def test_rounding_stays_within_half_a_digit(value: float) -> None:
    text = significant(value)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=5.1e-4)
    assert len(text.replace(",", "").replace(".", "").lstrip("0")) >= 4


COLUMNS = (
    Column[tuple[str, int]]("name", lambda item: item[0], align="left", wrap=True),
    Column[tuple[str, int]]("time (us)", lambda item: Cell(str(item[1]), "best"), ("time", "us")),
)


def test_a_long_text_continues_on_the_next_line() -> None:
    lines = render(Output(tables=(Table("", COLUMNS, [("word " * 40, 1)]),), data=None), "table").splitlines()
    assert [line[:4] for line in lines[3:]] == ["word"] * (len(lines) - 3)
    assert len(lines) > 4
    assert max(map(len, lines)) <= 100


NASTY = "a\x1b[31m\x00\x9b\ud800\ufffe|b_%"


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "csv", "json", "junit", "github"])
@pytest.mark.parametrize("colour", [False, True])
def test_a_name_with_characters_that_no_file_holds_becomes_legal(form: str, colour: bool) -> None:
    check = Check(NASTY, NASTY, NASTY, NASTY, NASTY, "failed")
    table = Table(NASTY, COLUMNS, [(NASTY, 1)])
    suite = Suite(NASTY, {NASTY: NASTY}, [check], "")
    output = Output(title=NASTY, tables=(table,), data=[{"name": NASTY}], suite=suite)
    text = render(output, form, Screen(colour=colour))
    plain = Text.from_ansi(text).plain if form == "table" else text
    assert not {"\x1b", "\x00", "\x9b", "\ufffe"} & set(plain)
    assert form in ("json", "csv", "latex") or "a\ufffd[31m" in plain.replace("\\[", "[")
    assert "b" in plain
    text.encode()
    if form == "junit":
        root = ElementTree.fromstring(text)[0]
        assert root.get("name") == root[1].get("name") == "a\ufffd[31m\ufffd\ufffd\ufffd\ufffd|b_%"
