"""The kinds of work that experiments ask for, by the names that files give them.

A kind has a part for every room that has to know it. A room names no kind and imports none: it asks here for its part,
whose type it defines itself. `chunkbench.workloads.register` adds the kinds; the command line, the worker and
`chunkbench.load` call it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of work. Each part is made when it is first asked for, so that nobody imports what they do not use."""

    name: str
    reading: Callable[[], Any]
    """How an experiment is read: `chunkbench.experiment.reading.Reading`."""
    implementations: Callable[[], Any]
    """What can be measured: `chunkbench.baselines.registry.Registry`."""
    facts: Callable[[], Any]
    """The model of a line of `cases.jsonl`: `chunkbench.store.facts.CaseFacts` or another."""
    measuring: Callable[[], Any]
    """How points are measured: `chunkbench.runner.measuring.Measuring`."""
    working: Callable[[], Any]
    """What a worker has to know: `chunkbench.workers.working.Working`."""
    showing: Callable[[], Any]
    """How a run is shown: `chunkbench.report.showing.Showing`."""


_kinds: dict[str, Kind] = {}


def add(kind: Kind) -> None:
    """Make a kind known under its name. Adding it again changes nothing."""
    _kinds.setdefault(kind.name, kind)


def names() -> tuple[str, ...]:
    """The names of all kinds; the first is that of an experiment that names none."""
    return tuple(_kinds)


def get(name: str) -> Kind:
    """The kind of this name. Raises `LookupError`, which says what there is."""
    try:
        return _kinds[name]
    except KeyError:
        known = ", ".join(_kinds) or "none: call chunkbench.workloads.register() first"
        raise LookupError(f"there is no kind of work called {name!r}; there are {known}") from None
