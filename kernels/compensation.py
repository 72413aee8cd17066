"""Compensation tokens, which replace the tokens that a head lost (RazorAttention, arXiv 2407.15891)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from chunkbench.kernels.integers import Ints

Compensation = Literal["none", "mean", "weighted"]
"""none: nothing replaces lost tokens; mean: a token with the means of their K and V; weighted: this token, with the
logarithm of their number added to its score."""


@dataclass(frozen=True)
class CompensationTokens:
    """A token for each row that replaces the tokens whose chunks the row does not read. Its K and V are the means of
    the K and V of those tokens."""

    sums: torch.Tensor
    """`[entries, heads of all layers, 2, d]` float32: sums of K and of V."""
    entries: Ints
    """`[b]`: index in `sums` of each row's token; NOWHERE if the row has none."""
    tokens: Ints
    """`[b]`: number of tokens over which the partial result of each row runs."""
    weighted: bool
    """Whether the logarithm of the number of tokens is added to the score."""

    @property
    def shares(self) -> npt.NDArray[np.float32]:
        """`[b]`: factors that turn sums into means."""
        return (1 / np.maximum(self.tokens, 1)).astype(np.float32)

    @property
    def biases(self) -> npt.NDArray[np.float32]:
        """`[b]`: numbers that are added to the scaled scores."""
        return np.log(np.maximum(self.tokens, 1)).astype(np.float32) * np.float32(self.weighted)
