"""The kinds of work, a folder each: what its experiments hold, how a point is measured, how its runs are shown.

A folder names itself and nobody names it but this module. `register` makes the kinds known to the rooms below.
"""

from __future__ import annotations

from chunkbench import kinds
from chunkbench.workloads import decode, layer, memory


def register() -> None:
    """Add all kinds of work to the registry, in order: the first is that of an experiment that names none."""
    for kind in (decode.KIND, memory.KIND, layer.KIND):
        kinds.add(kind)
