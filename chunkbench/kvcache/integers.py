"""Arrays of integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def ranges(first: Ints, count: Ints) -> Ints:
    """The integers first[0] .. first[0] + count[0] - 1, then those of the next range, and so on."""
    offsets = np.cumsum(count) - count
    return np.repeat(first - offsets, count) + np.arange(int(count.sum()))
