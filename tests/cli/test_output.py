"""What commands share: exit codes, and messages with the options that solve a problem."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import click
import pytest

from chunkbench.cli.main import cli
from chunkbench.cli.output import colour_wanted, explain, run_exit_code, typed_command, write_experiment, write_text
from chunkbench.run_error import Remedy, RunError


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["unavailable", "oom"], 3),
        (["ok", "noisy", "unavailable", "unsupported", "oom"], 0),
        (["ok", "incorrect"], 3),
        (["error"], 3),
        (["crashed", "ok"], 3),
        (["timeout"], 3),
    ],
)
def test_failed_cases_or_none_measured_make_the_exit_code_3(statuses: list[Any], code: int) -> None:
    assert run_exit_code(statuses) == code


def test_messages_name_the_options_that_solve_the_problem() -> None:
    assert explain("plain") == "plain"
    assert explain(RunError("x: taken", remedy="elsewhere")) == "x: taken (--out DIR names another folder)"
    assert explain(RunError("x: damaged")) == "x: damaged"
    assert all(explain(RunError("x", remedy)) != "x" for remedy in get_args(Remedy))


def test_messages_hold_nothing_that_a_terminal_obeys() -> None:
    assert explain("a\x1b[31m\r\x9b\ud800\nb") == "a\ufffd[31m\ufffd\ufffd\ufffd\nb"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "0"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "unknown"}, False),
    ],
)
def test_colours_go_to_terminals_that_know_them(
    variables: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm-256color"} | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("chunkbench.cli.output.on_terminal", lambda: True)
    assert colour_wanted() is wanted


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("old")
    path.chmod(0o644)
    (tmp_path / "link").symlink_to(path)
    with click.Context(cli, info_name="traces"):
        write_text(tmp_path / "link", "new")
        assert (path.read_text(), (tmp_path / "link").is_symlink()) == ("new", True)
        with pytest.raises(SystemExit):
            write_experiment(path, "title: 5\n")
        with pytest.raises(SystemExit):
            write_text(Path("/dev/full"), "text")
    assert path.read_text() == "new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["e.yaml", "link"]


@pytest.mark.parametrize(
    ("started", "on_path", "typed"),
    [
        ("/env/bin/chunkbench", "/env/bin/chunkbench", ["chunkbench", "run", "x"]),
        (".venv/bin/chunkbench", None, [".venv/bin/chunkbench", "run", "x"]),
        ("/lib/chunkbench/__main__.py", None, [sys.executable, "-m", "chunkbench", "run", "x"]),
    ],
)
def test_a_command_to_continue_can_be_typed(
    started: str, on_path: str | None, typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [started, "run", "x"])
    monkeypatch.setattr("shutil.which", lambda name: on_path)
    assert typed_command() == typed
