"""A trace of one decode: the times that a kernel reports for each unit of its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.integers import Ints

TracedCall = Literal["decode", "read", "compute"]
"""decode: a whole decode; read: only its reads; compute: only its arithmetic, on K and V that stay in the caches."""

Floats = npt.NDArray[np.float64]

PARTS = ("start", "scores", "softmax", "values", "leave")
"""Parts of a unit: start rows and fold in partial results; Q Kᵀ; online softmax; P V; write results."""


@dataclass(frozen=True)
class Trace:
    """One traced call. All arrays are `[units]`, in the order in which threads took the units. Times are in seconds."""

    threads: int
    seconds: float
    """Duration of the native call, measured in Python. It includes the start of the threads. All other times count from
    shortly after the beginning of this call."""
    shared: npt.NDArray[np.bool_]
    """Whether the unit's chunks are read for several rows."""
    thread: Ints
    begin: Floats
    ready: Floats
    """Time at which the partial results that the unit folds in were ready; `begin` if the unit needs none."""
    end: Floats
    parts: Floats
    """`[units, 5]`: seconds in each of PARTS. The rest of a unit is waiting."""
    read_bytes: Ints
    """Bytes of K and V that the unit reads."""
    flops: Ints
    """Floating-point operations of the unit's two products."""
    place_bytes: int
    """Largest number of bytes of K and V that a unit reads of one chunk. If they do not fit into a core's own cache,
    `compute` also reads memory."""
