"""Checks token ids that callers pass in, and compares lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkbench.attention.errors import WrongTokens
from chunkbench.kernels.integers import Ints

Tokens = Sequence[int] | npt.NDArray[np.integer]


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Number of equal items (tokens, keys, characters, bytes) with which both arguments begin. Both have the same type,
    such as tuple."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # [:low] is equal, [:high] is not; slices are compared in C
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low


def token_array(tokens: Tokens) -> Ints:
    """Token ids as a flat int64 array. Raises WrongTokens for anything but a flat list of integers."""
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise WrongTokens("token ids must be a flat list") from error
    if array.ndim != 1:
        raise WrongTokens(f"token ids must be a flat list, not of shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise WrongTokens(f"token ids must be integers, not {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)
