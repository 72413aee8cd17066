"""Ids of implementations, listed without importing the implementations."""

from __future__ import annotations

from chunkbench import workload


def known_implementations(kind: str | None = None) -> tuple[str, ...]:
    """Ids that a kind of work can measure; None: the ids of all kinds."""
    searched = workload.all_kinds() if kind is None else (workload.get(kind),)
    return tuple(dict.fromkeys(id_ for one in searched for id_ in one.implementations().names()))
