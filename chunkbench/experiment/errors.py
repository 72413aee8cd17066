"""Problems of an experiment, each with its place in the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a file: line and column count from 1. Line 0 means the whole file or command-line option."""

    path: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path


@dataclass(frozen=True)
class Problem:
    """One problem to correct. `path` is the file as the caller named it, or the override (`n_s=2048`)."""

    path: str
    line: int
    column: int
    message: str
    key: str = ""
    """The key that has the problem; empty if there is none."""

    def __str__(self) -> str:
        place = str(Mark(self.path, self.line, self.column))
        line = f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"
        # Keys and values may hold line breaks and terminal codes; every problem must stay on one line.
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


class ExperimentError(ValueError):
    """An experiment cannot be used; `problems` holds all problems in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(dict.fromkeys(problems), key=lambda p: (p.line, p.column))
        super().__init__("\n".join(map(str, self.problems)))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`; did you mean X?` if a known name is similar, else `; one of ...`."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]}?" if close else f"; one of {', '.join(known)}"
