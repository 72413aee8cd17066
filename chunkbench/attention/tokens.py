"""Token ids that callers pass in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chunkbench.attention.errors import WrongTokens
from chunkbench.kernels.integers import Ints

Tokens = Sequence[int] | npt.NDArray[np.integer]


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def token_array(tokens: Tokens) -> Ints:
    """Token ids as a flat int64 array; raises WrongTokens for anything but a flat list of integers."""
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
