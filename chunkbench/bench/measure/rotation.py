"""Cold L2 by rotation: how many copies of a session take turns, and how many calls form a sample."""

from __future__ import annotations

import math
from typing import NamedTuple

from chunkbench.bench.experiment.terms import Mode

L2_FACTOR = 5
"""All copies together hold more than this many times the size of the L2 cache."""
MOST_COPIES = 32
"""With more copies, the appends would take longer than the measurement, so a sweep of the cache replaces them."""
FEWEST_CALLS = 8
"""Calls between the two CUDA events of a sample: events resolve half a microsecond, and a kernel may take only ten."""


class Rotation(NamedTuple):
    """How many copies of a session an implementation needs for its cold cases."""

    copies: int
    sweep: bool
    """Whether a sweep must clear the cache before each call, because the copies do not fill it."""


def rotation(touched: int, l2_bytes: int, need: int, room: int) -> Rotation:
    """How to make caches cold for a session that reads `touched` distinct bytes of K and V and needs `need` bytes.

    The smallest number of copies that together read more than five times the size of the L2 cache; a large session
    needs only one. If that many copies do not fit into `room` bytes, or exceed `MOST_COPIES`: one copy and a sweep.
    """
    wanted = math.ceil((L2_FACTOR * l2_bytes + 1) / max(1, touched))
    if wanted > MOST_COPIES or wanted * need > max(room, need):
        return Rotation(1, True)
    return Rotation(wanted, False)


def calls_of(mode: Mode, copies: int) -> int:
    """Calls in a sample: one for wall times (`eager`); otherwise at least eight, the same number on each copy."""
    return 1 if mode == "eager" else copies * math.ceil(FEWEST_CALLS / copies)


def runs_of(mode: Mode, copies: int) -> int:
    """Decodes that a sample costs, with the untimed ones: every call runs once before; for a graph, twice before."""
    if mode == "eager":
        return copies + 1
    return calls_of(mode, copies) * (3 if mode == "graph" else 2)
