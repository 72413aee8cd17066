"""Models of the time of a replay's steps, and the speed at which this machine copies swapped sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np

from chunkbench.attention.manager import Reads


@dataclass(frozen=True)
class StepShape:
    """The work of one step."""

    decoding: int
    """Number of sequences that decode one token."""
    reads: Reads
    """Tokens that all live sequences attend to, the new tokens included. Sequences whose prompts are not fully computed
    count like decoding ones.
    """
    prompt_tokens: int = 0
    """Prompt tokens that the step computes, over all prompts."""
    prompt_reads: int = 0
    """Sum over the computed prompt tokens: `i + 1` for token `i` of a prompt, because it attends to that many tokens.
    """
    sampled: int = 0
    """Number of rows whose logits are needed: decoding sequences, and prompts that end in this step."""
    swapped_tokens: int = 0
    """Tokens whose K and V are copied to host memory or back."""

    @property
    def read_once(self) -> int:
        """Number of distinct tokens that decoding reads. 0 if nothing decodes, even if sequences are live."""
        return self.reads.private + self.reads.shared if self.decoding else 0

    @property
    def read_again(self) -> int:
        """Number of reads of shared tokens, without the first read of each token."""
        return self.reads.shared_covered - self.reads.shared if self.decoding else 0


class StepTime(Protocol):
    """A model of how long steps take."""

    def seconds(self, shape: StepShape) -> float:
        """Seconds of a step with this work."""
        ...

    @property
    def words(self) -> str:
        """The source of the times, in one line for reports."""
        ...


@dataclass(frozen=True)
class Constant:
    """Every step takes the same time. Raises ValueError if the time is not above 0."""

    step_s: float

    def __post_init__(self) -> None:
        if not self.step_s > 0:
            raise ValueError(f"a step must take more than 0 s, not {self.step_s}")

    def seconds(self, shape: StepShape) -> float:
        return self.step_s

    @property
    def words(self) -> str:
        return f"every step takes {self.step_s * 1e3:g} ms, whatever it computes"


@dataclass(frozen=True)
class WithSwaps:
    """Adds the time to copy swapped sequences to another model of step times."""

    inner: StepTime
    token_s: float
    """Seconds for each token whose K and V are copied out or back."""
    copies: str
    """The source of `token_s`, in words."""

    def seconds(self, shape: StepShape) -> float:
        return self.inner.seconds(shape) + shape.swapped_tokens * self.token_s

    @property
    def words(self) -> str:
        return f"{self.inner.words}; {self.copies}"


_BYTES = 1 << 28
"""Bytes of the memory that is copied from. This memory is larger than the caches of most machines."""
_COPIED = 1 << 26
_TIMES = 5


@cache
def copy_rate(piece_bytes: int) -> float:
    """Bytes per second at which pieces of this size are copied from random places into one contiguous area, as a median
    of 5 copies.

    One thread makes one copy for each piece, as a server moves blocks between two memories. The time of Python's call
    is included. Each size is measured once per process.
    """
    piece_bytes = min(piece_bytes, _COPIED)  # larger pieces are copied no faster
    source, target = np.ones(_BYTES, np.uint8), np.ones(_COPIED, np.uint8)
    count = min(_COPIED // piece_bytes, 1 << 14)
    places = np.random.default_rng(0).permutation(_BYTES // piece_bytes)[:count] * piece_bytes
    pieces = [
        (source[place : place + piece_bytes], target[n * piece_bytes : (n + 1) * piece_bytes])
        for n, place in enumerate(places.tolist())
    ]
    seconds = []
    for _ in range(_TIMES):
        started = perf_counter()
        for piece, part in pieces:
            part[:] = piece
        seconds.append(perf_counter() - started)
    return count * piece_bytes / median(seconds)
