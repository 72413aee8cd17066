"""Problems of an experiment.

A `Finding` names a path inside the values of the file. A `Problem` names a line and column of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chunkbench.text_file import did_you_mean

Path = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a file: line and column, counted from 1. Line 0 means the whole file, or a command-line option."""

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
    """An experiment cannot be used. `problems` holds all problems in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(dict.fromkeys(problems), key=lambda p: (p.line, p.column))
        super().__init__("\n".join(map(str, self.problems)))


class Finding(NamedTuple):
    """A problem of the value at `path`. If `key` is true, the key at `path` has the problem, not the value."""

    path: Path
    message: str
    key: bool = False

    def below(self, *above: str | int) -> Finding:
        """This finding with a longer path: the steps `above`, then the steps of this finding's path."""
        return self._replace(path=(*above, *self.path))


class Findings(ValueError):
    """A value has one or more problems."""

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings
        super().__init__("; ".join(finding.message for finding in findings))


class Misread:
    """Replaces a value that cannot be read, so that the rest of the file can still be checked."""

    def __repr__(self) -> str:
        return "a value that cannot be read"


MISREAD = Misread()


def unknown(noun: str, name: object, known: Sequence[str]) -> str:
    """The message about an unknown name. The message does not contain the name."""
    if isinstance(name, str) and ":" in name:
        return f"unknown {noun}; put a space after the colon"
    return f"unknown {noun}{did_you_mean(str(name)[:60], known)}"


def only_for(kinds: Sequence[str]) -> str:
    """The message about a key or an axis that only these kinds of work have."""
    *first, last = (f"`kind: {kind}`" for kind in kinds)
    return f"is only for {' and '.join([', '.join(first), last] if first else [last])}; leave it out"


def show(value: object) -> str:
    """Show a value in a message: short, with quotes around text but not around numbers."""
    if isinstance(value, Misread):
        return repr(value)
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
