"""Cold L2 by rotation: how many copies of a session take turns, and how many calls make a sample."""

from __future__ import annotations

import math
from typing import NamedTuple

from chunkbench.experiment.terms import Mode

L2_FACTOR = 5
"""The copies that take turns hold this many times what the L2 cache does."""
MOST_COPIES = 32
"""More would take longer to append to than to measure: a sweep of the cache takes their place."""
FEWEST_CALLS = 8
"""Of a sample that two CUDA events enclose: events resolve half a microsecond, a kernel may take ten."""


class Rotation(NamedTuple):
    """Sessions to prepare of an implementation for its cold cases."""

    copies: int
    sweep: bool
    """Whether the cache has to be swept before each call, because the copies do not fill it."""


def rotation(touched: int, l2_bytes: int, need: int, room: int) -> Rotation:
    """How caches are made cold for a session that reads `touched` distinct bytes of K and V and takes `need` in all.

    As many copies as are together larger than five times the L2 cache: one, where a session is that by itself. One
    and a sweep where so many do not fit into `room`, or are too many to keep up to date.
    """
    wanted = math.ceil((L2_FACTOR * l2_bytes + 1) / max(1, touched))
    if wanted > MOST_COPIES or wanted * need > max(room, need):
        return Rotation(1, True)
    return Rotation(wanted, False)


def calls_of(mode: Mode, copies: int) -> int:
    """Calls in a sample: one by the wall clock; between events at least eight, the same number on each copy."""
    return 1 if mode == "eager" else copies * math.ceil(FEWEST_CALLS / copies)


def runs_of(mode: Mode, copies: int) -> int:
    """Decodes that a sample costs, untimed ones included: every call is run in, and those of a graph once more."""
    if mode == "eager":
        return copies + 1
    return calls_of(mode, copies) * (3 if mode == "graph" else 2)
