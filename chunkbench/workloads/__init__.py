"""The kinds of work, one folder each: the keys of its experiments, how a point is measured, how runs are shown.

Only this module imports the folders. `register` makes the kinds known to the other packages.
"""

from __future__ import annotations

from chunkbench import kinds
from chunkbench.workloads import decode, layer, memory, replay, serving


def register() -> None:
    """Add all kinds of work to the registry, in order: an experiment that names no kind is of the first kind."""
    for kind in (decode.KIND, memory.KIND, layer.KIND, serving.KIND, replay.KIND):
        kinds.add(kind)
