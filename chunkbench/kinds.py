"""The registry of kinds of work, by the names that experiment files use.

A kind has one part for each room that needs it. The room defines the type of its part and asks this module for it; it
never names or imports a kind. `chunkbench.workloads.register` adds the kinds. The command line, the worker and
`chunkbench.load` call that function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of work. Each part is a function that makes it, so that a room imports only the part that it uses."""

    name: str
    reading: Callable[[], Any]
    """How an experiment is read: `chunkbench.experiment.reading.Reading`."""
    implementations: Callable[[], Any]
    """Which implementations can be measured: `chunkbench.baselines.registry.Registry`."""
    facts: Callable[[], Any]
    """The model of a line of `cases.jsonl`: `chunkbench.store.facts.CaseFacts` or another."""
    measuring: Callable[[], Any]
    """How points are measured: `chunkbench.runner.measuring.Measuring`."""
    working: Callable[[], Any]
    """How a worker makes inputs and checks: `chunkbench.workers.working.Working`."""
    showing: Callable[[], Any]
    """How reports show a run: `chunkbench.report.showing.Showing`."""


_kinds: dict[str, Kind] = {}


def add(kind: Kind) -> None:
    """Register a kind under its name. Does nothing if the name is registered already."""
    _kinds.setdefault(kind.name, kind)


def names() -> tuple[str, ...]:
    """The names of all kinds. The first one is the default of an experiment that names no kind."""
    return tuple(_kinds)


def get(name: str) -> Kind:
    """The kind with this name. Raises `LookupError`, whose message lists the known kinds."""
    try:
        return _kinds[name]
    except KeyError:
        known = ", ".join(_kinds) or "none: call chunkbench.workloads.register() first"
        raise LookupError(f"there is no kind of work called {name!r}; there are {known}") from None
