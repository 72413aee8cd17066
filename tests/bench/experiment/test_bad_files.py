"""Bad experiment files: loading reports every problem with the message and the place of the table."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

from chunkbench.bench.experiment import ExperimentError, load_experiment

BAD = Path(__file__).parent / "bad"


class Expected(NamedTuple):
    """A line of `problems.txt`: a place, the text there, and the message."""

    name: str
    line: int
    column: int
    text: str
    """Checks that line and column are right."""
    message: str


def expected() -> dict[str, list[Expected]]:
    """File -> its problems, in order."""
    problems: dict[str, list[Expected]] = {}
    for entry in (BAD / "problems.txt").read_text().splitlines():
        place, text, message = entry.split(" | ")
        name, line, column = place.split(":")
        problem = Expected(name, int(line), int(column), ast.literal_eval(text), message)
        problems.setdefault(name, []).append(problem)
    return problems


PROBLEMS = expected()


def test_every_bad_file_has_expected_problems() -> None:
    assert {file.stem for file in BAD.glob("*.yaml")} == PROBLEMS.keys()
    assert len(PROBLEMS) >= 20


@pytest.mark.parametrize("name", PROBLEMS)
def test_all_problems_are_reported(name: str) -> None:
    file = BAD / f"{name}.yaml"
    with pytest.raises(ExperimentError) as caught:
        load_experiment(file)
    assert str(caught.value).splitlines() == [f"{file}:{p.line}:{p.column}: {p.message}" for p in PROBLEMS[name]]


@pytest.mark.parametrize("name", PROBLEMS)
def test_expected_text_is_at_the_expected_place(name: str) -> None:
    lines = [*(BAD / f"{name}.yaml").read_text().split("\n"), ""]
    for problem in PROBLEMS[name]:
        assert lines[problem.line - 1][problem.column - 1 :].startswith(problem.text)
