"""Every format prints every output that has its part."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from rich.text import Text

from chunkbench.report import render
from chunkbench.report.formats import FORMATS
from chunkbench.report.model import Cell, Check, Column, Output, Suite, Table
from chunkbench.report.text_table import Screen

COLUMNS = (
    Column[tuple[str, int]]("name", lambda item: item[0], align="left", wrap=True),
    Column[tuple[str, int]]("time (us)", lambda item: Cell(str(item[1]), "best"), ("time", "us")),
)
OUTPUT = Output(
    title="Two kernels",
    tables=(Table("Times", COLUMNS, [("a_b", 1), ("c", 2)]),),
    data=[{"name": "a_b", "us": 1, "parts": [1, 2]}, {"name": "c", "us": float("nan")}],
    suite=Suite("s", {}, [Check("n", "a_b", "a_b at 1", "slower", "2x", "failed")], "1 slower"),
)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("table", "      time\nname    us\n──────────\na_b      1\nc        2\n"),
        ("markdown", "| a_b | **1** |"),
        ("latex", r"a\_b & \textbf{1} \\"),
        ("csv", 'name,us,parts\na_b,1,"[1, 2]"\nc,nan,\n'),
        ("json", '"us": null'),
        ("junit", 'type="slower"'),
        ("github", "::error title=slower%3A a_b at 1::2x"),
    ],
)
def test_every_format_prints_an_output(form: str, expected: str) -> None:
    assert expected in render(OUTPUT, form)
    assert {"html", form} <= {known.name for known in FORMATS}


def test_an_output_without_a_part_has_no_format_for_it() -> None:
    for form in ("csv", "junit", "html"):
        with pytest.raises(KeyError, match=form):
            render(Output(title="t", data={}), form)


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
