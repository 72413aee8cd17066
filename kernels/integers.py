"""Arrays of integers (ids and positions) and of truth values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NOWHERE = -1
"""In place of an id."""


def ranges(first: Ints, count: Ints) -> Ints:
    """Concatenate ranges: range i is the integers first[i] .. first[i] + count[i] - 1."""
    offsets = np.cumsum(count) - count
    return np.repeat(first - offsets, count) + np.arange(int(count.sum()))


def any_inside(flags: Bools, first: Ints, count: Ints) -> Bools:
    """Whether any flag of range i is true: of first[i] .. first[i] + count[i] - 1."""
    before = np.concatenate([[0], np.cumsum(flags)])
    found: Bools = before[first + count] > before[first]
    return found
