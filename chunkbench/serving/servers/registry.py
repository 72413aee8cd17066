"""The systems, found by entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from chunkbench.baselines.registry import Registry

GROUP = "chunkbench.systems"


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


SYSTEMS = Registry(_registered)
"""Systems of experiments of `kind: serving`."""
