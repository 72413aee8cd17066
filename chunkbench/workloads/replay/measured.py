"""Step times fitted to the steps of a server that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from chunkbench.workloads.replay.step_time import StepShape

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


TimedStep = tuple[StepShape, float]
"""What a step computed, and the seconds that it took."""


@dataclass(frozen=True)
class FittedStepTime:
    """Seconds of a step: a constant, and a share for each decoding sequence, prompt token and token read.

    It holds for the machine, the model and the server that were measured, and for steps like theirs. The attention of
    prompts is not a column (`prompt_reads`): on the recorded steps it did not make the prediction of others better.
    """

    constant_s: float
    decoding_s: float
    """For each decoding sequence."""
    prompt_token_s: float
    """For each prompt token that is computed."""
    read_once_s: float
    """For each token that decoding reads, shared ones once."""
    read_again_s: float
    """For each further sequence that reads a shared token."""
    steps: int
    """Steps of the fit."""
    median_error: float
    """Half of these steps are predicted better than this; a share of their time."""
    p95_error: float
    """95% of these steps are predicted better than this; a share of their time."""

    @classmethod
    def fit(cls, rows: Sequence[TimedStep]) -> FittedStepTime:
        """Fit to measured steps by least squares of seconds, without negative coefficients.

        Errors are not taken as shares, because then long steps would count less, and the sum of the predicted times
        would come out too small; a replay adds times up. Raises ValueError for fewer than 10 steps.
        """
        if len(rows) < 10:
            raise ValueError(f"{len(rows)} steps are too few to fit step times to; 10 are the least")
        columns, seconds = _columns([shape for shape, _ in rows]), np.array([taken for _, taken in rows])
        if not (seconds > 0).all():
            raise ValueError("every measured step must take more than 0 s")
        found = non_negative(columns, seconds)
        errors = np.abs(columns @ found / seconds - 1)
        median, most = np.quantile(errors, (0.5, 0.95))
        constant, decoding, prompt_token, once, again = map(float, found)
        return cls(constant, decoding, prompt_token, once, again, len(rows), float(median), float(most))

    def seconds(self, shape: StepShape) -> float:
        return (
            self.constant_s
            + self.decoding_s * shape.decoding
            + self.prompt_token_s * shape.prompt_tokens
            + self.read_once_s * shape.read_once
            + self.read_again_s * shape.read_again
        )

    @property
    def words(self) -> str:
        return (
            f"fitted to {self.steps} measured steps: {self.constant_s * 1e3:.3g} ms, "
            f"{self.decoding_s * 1e6:.3g} µs per decoding sequence, "
            f"{self.prompt_token_s * 1e6:.3g} µs per prompt token, "
            f"{self.read_once_s * 1e9:.3g} ns per token read, {self.read_again_s * 1e9:.3g} ns per further read of a "
            f"shared one; half of these steps are predicted within {self.median_error:.0%}, "
            f"95% within {self.p95_error:.0%}"
        )


def _columns(shapes: Sequence[StepShape]) -> Floats:
    return np.array(
        [(1, shape.decoding, shape.prompt_tokens, shape.read_once, shape.read_again) for shape in shapes], np.float64
    )
