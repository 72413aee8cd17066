"""Ids of implementations, known without importing any of them."""

from __future__ import annotations

from chunkbench import kinds


def known_implementations(kind: str | None = None) -> tuple[str, ...]:
    """Ids of what a kind of work can measure, or any kind."""
    chosen = kinds.names() if kind is None else (kind,)
    return tuple(dict.fromkeys(name for each in chosen for name in kinds.get(each).implementations().names()))
