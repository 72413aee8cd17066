"""Compensation tokens, which replace the tokens that a head lost (RazorAttention, arXiv 2407.15891)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from chunkbench.kernels.integers import Ints

Compensation = Literal["none", "mean", "weighted"]
"""What replaces the tokens that a head lost. none: nothing. mean: one token whose K and V are the means of the lost
ones. weighted: like mean, and the logarithm of the number of lost tokens is added to its score."""


@dataclass(frozen=True)
class CompensationTokens:
    """A token for each row, which replaces the tokens that the row does not read. The token's K and V are the means of
    the K and V of the replaced tokens."""

    sums: torch.Tensor
    """`[entries, heads of all layers, 2, d]` float32: sums of K and of V."""
    entries: Ints
    """`[b]`: index in `sums` for each row; NOWHERE if the row has no compensation token."""
    tokens: Ints
    """`[b]`: number of tokens that each compensation token replaces."""
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
