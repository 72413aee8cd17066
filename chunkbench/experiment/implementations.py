"""Ids of implementations, listed without importing the implementations."""

from __future__ import annotations

from chunkbench import kinds


def known_implementations(kind: str | None = None) -> tuple[str, ...]:
    """Ids that a kind of work can measure; None: the ids of all kinds."""
    searched = kinds.names() if kind is None else (kind,)
    return tuple(dict.fromkeys(id_ for name in searched for id_ in kinds.get(name).implementations().names()))
