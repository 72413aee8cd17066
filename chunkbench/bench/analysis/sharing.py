"""Computes how much a set of prompts shares: the figures of the paper's Table 2, and the K/V memory that sharing
saves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from chunkbench.attention.tokens import alike

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Sharing:
    """How much the prompts of one group share. The prompts and their completions are in memory at the same time."""

    group: str
    prompts: int
    tokens_mean: float
    shared_mean: float
    """Mean number of leading tokens that a prompt has in common with the most similar other prompt of the group."""
    shared_max: int
    """Largest number of leading tokens that a prompt has in common with another prompt of the group."""
    common: int
    """Number of leading tokens that all prompts of the group have in common."""
    ratio: float
    """Shared tokens / (prompt tokens + completion tokens), as in section 3.1 of the paper. Mean over all prompts."""
    tokens: int
    """Number of K/V tokens in memory without sharing, completions included."""
    held: int
    """Number of K/V tokens in memory if prompts share whole chunks, completions included."""

    @property
    def saved(self) -> float:
        """Share of the K/V memory that sharing saves."""
        return 1 - self.held / self.tokens


def sharing(groups: Mapping[str, Sequence[Tokens]], chunk_size: int, n_c: int) -> list[Sharing]:
    """The figures of each group. `n_c` completion tokens follow each prompt."""
    return [_sharing(group, prompts, chunk_size, n_c) for group, prompts in groups.items()]


def _sharing(group: str, prompts: Sequence[Tokens], chunk_size: int, n_c: int) -> Sharing:
    # In lexicographic order, a neighbour of a prompt is the prompt that shares most with it.
    ordered = sorted(prompts)
    prefixes = [alike(prompt, following) for prompt, following in itertools.pairwise(ordered)]
    shared = [max(left, right) for left, right in zip([0, *prefixes], [*prefixes, 0], strict=True)]
    lengths = [len(prompt) for prompt in ordered]
    tokens = sum(lengths) + n_c * len(prompts)
    # Only whole chunks are shared. Each chunk that two neighbours share is stored one time less.
    held = tokens - sum(prefix - prefix % chunk_size for prefix in prefixes)
    return Sharing(
        group=group,
        prompts=len(prompts),
        tokens_mean=fmean(lengths),
        shared_mean=fmean(shared),
        shared_max=max(shared),
        common=min(prefixes) if prefixes else 0,
        ratio=fmean(prefix / (length + n_c) for prefix, length in zip(shared, lengths, strict=True)),
        tokens=tokens,
        held=held,
    )
