"""Bad experiment files: loading reports every problem with the message and the place that `bad_files.txt` states."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

from chunkbench.bench.experiment import ExperimentError, load_experiment


class Problem(NamedTuple):
    """A place of a file, the text there, and the message."""

    line: int
    column: int
    text: str
    """Checks that line and column are right."""
    message: str


def problem(entry: str) -> Problem:
    place, text, message = entry.split(" | ")
    line, column = place.split(":")
    return Problem(int(line), int(column), ast.literal_eval(text), message)


def bad_files() -> dict[str, tuple[str, list[Problem]]]:
    """Name -> the file, and its problems in order."""
    sections = Path(__file__).with_name("bad_files.txt").read_text().split("==== ")[1:]
    files = {}
    for section in sections:
        name, content = section.split("\n", 1)
        text, problems = content.split("----\n")
        files[name] = (text, [problem(entry) for entry in problems.splitlines()])
    return files


FILES = bad_files()


@pytest.mark.parametrize("name", FILES)
def test_all_problems_are_reported(name: str, tmp_path: Path) -> None:
    text, problems = FILES[name]
    file = tmp_path / f"{name}.yaml"
    file.write_text(text)
    with pytest.raises(ExperimentError) as caught:
        load_experiment(file)
    assert str(caught.value).splitlines() == [f"{file}:{p.line}:{p.column}: {p.message}" for p in problems]
    lines = [*text.split("\n"), ""]
    for p in problems:
        assert lines[p.line - 1][p.column - 1 :].startswith(p.text)
