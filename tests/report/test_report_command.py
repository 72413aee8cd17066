"""`chunkbench report` and `chunkbench.load`: a run read again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chunkbench.bench.store import TORN
from chunkbench.cli.report import command


@pytest.fixture
def run_directory(table3, tmp_path):
    """The invented run as a directory on disk."""
    folder = tmp_path / "results" / "runs" / "table3-20250101T000000Z"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(table3.manifest.model_dump_json())
    (folder / "cases.jsonl").write_text("".join(case.model_dump_json() + "\n" for case in table3.cases))
    return folder


def call(*arguments: object):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_rebuilds_all_files_and_prints_the_table(run_directory) -> None:
    result = call(run_directory)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Table 3")
    *table, last = result.stdout.splitlines()
    assert max(map(len, table)) <= 100
    assert last == f"report: {run_directory / 'report.html'}"
    assert "\x1b" not in result.stdout
    names = {"report.md", "table.csv", "table.tex", "report.json", "figure.png", "figure.svg"}
    assert names <= {path.name for path in run_directory.iterdir()}
    assert all(name in result.stderr for name in names)
    first = {path.name: path.read_bytes() for path in run_directory.iterdir()}
    assert call(run_directory, "-q").output == ""
    assert {path.name: path.read_bytes() for path in run_directory.iterdir()} == first


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("x.md", b"# Table 3"),
        ("x.csv", b"key,"),
        ("x.txt", b"Table 3"),
        ("x.html", b"<!doctype html>"),
        ("x.png", b"\x89PNG"),
        ("x.svg", b"<?xml"),
        ("x.pdf", b"%PDF"),
    ],
)
def test_the_ending_chooses_the_format(run_directory, tmp_path, name: str, start: bytes) -> None:
    result = call(run_directory, "--out", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_bytes()[: len(start)].lower() == start.lower()
    assert {path.name for path in run_directory.iterdir()} == {"manifest.json", "cases.jsonl"}


def test_what_cannot_be_reported_is_refused(run_directory, tmp_path) -> None:
    empty, other, unmeasured = (tmp_path / name for name in ("empty", "other", "unmeasured"))
    empty.mkdir()
    for copy in (other, unmeasured):
        shutil.copytree(run_directory, copy)
    (unmeasured / "cases.jsonl").write_text("")
    for words, message in (
        ((run_directory, "--out", tmp_path / "x.docx"), "choose one with --format"),
        ((run_directory, other, "--out", tmp_path / "x.png"), "takes one RUN"),
        ((run_directory, other, "--format", "csv"), "csv takes one RUN"),
        ((run_directory, "--out", tmp_path / "nowhere" / "x.txt"), "cannot be written"),
        ((empty,), "there is no run in it"),
        ((unmeasured,), "no case has been measured"),
    ):
        refused = call(*words)
        assert refused.exit_code == 2
        assert message in refused.stderr
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("x.")]


def test_latest_is_the_newest(run_directory, monkeypatch, tmp_path) -> None:
    older = run_directory.parent / "smoke-20240101T000000Z"
    older.mkdir()
    (older / "manifest.json").write_text(json.dumps({"schema_version": 1}))
    os.utime(older / "manifest.json", (1, 1))
    monkeypatch.chdir(tmp_path)
    result = call("latest", "--format", "csv")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 121


def test_a_last_line_that_is_cut_short_is_named(run_directory) -> None:
    path = run_directory / "cases.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    result = call(run_directory, "--format", "csv")
    assert len(result.stdout.splitlines()) == 120
    assert result.stderr == f"{run_directory}: {TORN}; it is left out\n"


def test_without_detail_only_the_essential_tables_are_printed(run_directory) -> None:
    brief, whole = (call(run_directory, "--format", "table", *words).stdout for words in ((), ("--detail",)))
    assert "Ratio to ChunkAttn" in brief
    assert "shares of the machine's limits" in " ".join(brief.split("--detail")[1].split())  # named, not shown
    assert "roof-" not in brief
    assert "roof-" in whole
    assert "--detail" not in whole


def test_a_folder_of_runs_is_one_report_in_the_papers_order(run_directory, tmp_path) -> None:
    second = tmp_path / "results" / "runs" / "deeper" / "a-memory"
    shutil.copytree(run_directory, second)
    manifest = json.loads((second / "manifest.json").read_text())
    manifest["experiment"] |= {"name": "memory", "title": "Memory"}
    (second / "manifest.json").write_text(json.dumps(manifest))
    text = call(tmp_path / "results", "--format", "markdown").stdout
    assert text.index("# Memory") < text.index("# Table 3")


def test_the_papers_style_has_one_table_and_narrow_figures(run_directory, tmp_path) -> None:
    figure = tmp_path / "figure.svg"
    assert call(run_directory, "--out", figure, "--style", "paper").exit_code == 0
    inches = float(re.search(r'width="([\d.]+)pt"', figure.read_text()).group(1)) / 72  # type: ignore[union-attr]
    assert 6.5 < inches < 7.5  # three panels: both columns
    assert "Invented CPU" not in figure.read_text()  # the caption is LaTeX's
    table = call(run_directory, "--format", "latex", "--style", "paper").stdout
    assert table.count(r"\toprule") == 1
    pdf = tmp_path / "figure.pdf"
    assert call(run_directory, "--out", pdf, "--style", "paper").exit_code == 0
    assert b"/FontFile2" in pdf.read_bytes()


def test_figures_do_not_depend_on_the_users_matplotlib(run_directory, tmp_path) -> None:
    """A notebook's back end is inherited by commands; a matplotlibrc may be in the current folder."""
    ours, theirs = tmp_path / "ours.png", tmp_path / "theirs.png"
    assert call(run_directory, "--out", ours).exit_code == 0
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.facecolor: red\naxes.grid: True\n")
    backend = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    words = [sys.executable, "-m", "chunkbench", "report", str(run_directory), "--out", str(theirs)]
    ended = subprocess.run(words, env=os.environ | backend, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert theirs.read_bytes() == ours.read_bytes()


ROOT = Path(__file__).parents[2]


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells, one after the other, in the top folder of the checkout."""
    import matplotlib as mpl

    monkeypatch.chdir(ROOT)
    mpl.use("agg")
    notebook = json.loads((ROOT / "examples" / "analyse-a-run.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(names["ratios"]) == 12
    assert set(names["slower"].index) == {(1024, 0)}
    assert names["figure"].get_ylabel() == "times as long as ChunkAttn"
