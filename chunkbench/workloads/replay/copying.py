"""How fast this machine copies scattered pieces of memory, as when a sequence is swapped block by block."""

from __future__ import annotations

from functools import cache
from statistics import median
from time import perf_counter

import numpy as np

_BYTES = 1 << 28
"""Larger than the caches of most machines."""
_COPIED = 1 << 26
_TIMES = 5


@cache
def copy_rate(piece_bytes: int) -> float:
    """Bytes per second at which pieces of so many bytes, in random order, become contiguous: the median of 5 copies.

    One thread, one copy for each piece, as a server moves blocks between two memories; Python's call is in it. Measured
    once per process.
    """
    piece_bytes = min(piece_bytes, _COPIED)  # larger ones are no faster
    source, target = np.ones(_BYTES, np.uint8), np.ones(_COPIED, np.uint8)
    count = min(_COPIED // piece_bytes, 1 << 14)
    places = np.random.default_rng(0).permutation(_BYTES // piece_bytes)[:count] * piece_bytes
    pieces = [
        (source[place : place + piece_bytes], target[n * piece_bytes : (n + 1) * piece_bytes])
        for n, place in enumerate(places.tolist())
    ]
    seconds = []
    for _ in range(_TIMES):
        started = perf_counter()
        for piece, part in pieces:
            part[:] = piece
        seconds.append(perf_counter() - started)
    return count * piece_bytes / median(seconds)
