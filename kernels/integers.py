"""Arrays of integers (ids and positions) and of truth values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NOWHERE = -1
"""Stands for "no id" in arrays of ids."""


def ranges(first: Ints, count: Ints) -> Ints:
    """Concatenate ranges: range i is the integers first[i] .. first[i] + count[i] - 1."""
    ends = count.cumsum()
    return np.repeat(first - ends + count, count) + np.arange(ends[-1] if len(ends) else 0)


def any_inside(flags: Bools, first: Ints, count: Ints) -> Bools:
    """Whether any flag of each range is true. Range i has the flags first[i] .. first[i] + count[i] - 1."""
    before = np.zeros(len(flags) + 1, np.int64)
    flags.cumsum(out=before[1:])
    found: Bools = before[first + count] > before[first]
    return found
