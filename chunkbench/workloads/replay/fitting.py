"""Least squares with coefficients that are not negative."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def non_negative(columns: Floats, target: Floats) -> Floats:
    """Coefficients x >= 0 with the smallest sum of squares of `columns @ x - target`; `columns` is [rows, few].

    The best x is the plain least-squares solution for the columns where it is not 0. So all sets of columns are tried,
    of which five have 31. Columns of zeros get 0.
    """
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = columns / scale
    best = np.zeros(columns.shape[1])
    least = float(np.square(target).sum())
    for size in range(1, columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), size)):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)
            rest = float(np.square(scaled[:, chosen] @ found - target).sum())
            if rest < least and (found >= 0).all():
                least, best = rest, np.zeros(columns.shape[1])
                best[chosen] = found
    coefficients: Floats = best / scale
    return coefficients
