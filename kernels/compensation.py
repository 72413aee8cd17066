"""Compensation tokens: what stands for the tokens that a head lost (RazorAttention, arXiv 2407.15891)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from chunkbench.kernels.integers import Ints

Compensation = Literal["none", "mean", "weighted"]
"""Nothing; a token of their means of K and V; or this token with the logarithm of their number added to its score."""


@dataclass(frozen=True)
class CompensationTokens:
    """A token for each row that stands for tokens whose chunks the row does not read: their means of K and V."""

    sums: torch.Tensor
    """`[entries, heads of all layers, 2, d]` float32: sums of K and of V."""
    entries: Ints
    """`[b]`; NOWHERE: no such token."""
    tokens: Ints
    """`[b]`: how many tokens an entry sums."""
    weighted: bool
    """Whether the logarithm of that number is added to the score."""

    @property
    def shares(self) -> npt.NDArray[np.float32]:
        """`[b]`: what turns sums into means."""
        return (1 / np.maximum(self.tokens, 1)).astype(np.float32)

    @property
    def biases(self) -> npt.NDArray[np.float32]:
        """`[b]`: what is added to the scaled score."""
        return np.log(np.maximum(self.tokens, 1)).astype(np.float32) * np.float32(self.weighted)
