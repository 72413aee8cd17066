"""Arrays of integers: ids and positions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
NOWHERE = -1
"""In place of an id."""


def ranges(first: Ints, count: Ints) -> Ints:
    """Concatenate ranges: range i is the integers first[i] .. first[i] + count[i] - 1."""
    offsets = np.cumsum(count) - count
    return np.repeat(first - offsets, count) + np.arange(int(count.sum()))
