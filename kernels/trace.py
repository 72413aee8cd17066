"""Where the time of one decode goes: what a kernel tells of each unit of its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.integers import Ints

TracedCall = Literal["decode", "read", "compute"]
"""A whole decode; its reads alone, without arithmetic; its arithmetic alone, on K and V that stay in the caches."""

Floats = npt.NDArray[np.float64]

PARTS = ("start", "scores", "softmax", "values", "leave")
"""Start rows and fold in partial results; Q Kᵀ; online softmax; P V; leave results."""


@dataclass(frozen=True)
class Trace:
    """One traced call. All arrays are `[units]`, in the order in which threads took the units; times are seconds."""

    threads: int
    seconds: float
    """The native call, as its caller in Python sees it: also the start of threads, and reading out the trace. Unit
    times count from shortly after its begin."""
    shared: npt.NDArray[np.bool_]
    """Whether the unit's chunks are read for several rows."""
    thread: Ints
    begin: Floats
    ready: Floats
    """When the partial results that the unit folds in were there; `begin` if it needs none."""
    end: Floats
    parts: Floats
    """`[units, 5]`: seconds in each of PARTS. The rest of a unit is waiting."""
    read_bytes: Ints
    """K and V that the unit reads."""
    flops: Ints
    """Floating-point operations of its two products."""
    place_bytes: int
    """Most K and V that a unit reads of one chunk. If it does not fit into a core's own cache, `compute` reads, too."""
