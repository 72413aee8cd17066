"""What a set of prompts shares: the figures of the paper's Table 2, and the K/V memory that sharing saves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Sharing:
    """One group of prompts, all held at once, each followed by its completion."""

    group: str
    prompts: int
    tokens_mean: float
    """Tokens of a prompt."""
    shared_mean: float
    shared_max: int
    """Leading tokens that a prompt has in common with some other prompt of the group."""
    common: int
    """Leading tokens that all of them have in common."""
    ratio: float
    """Mean of r = shared tokens / (prompt and completion tokens) (section 3.1)."""
    tokens: int
    """K/V tokens held where nothing is shared, completions included."""
    held: int
    """K/V tokens held where whole chunks are shared."""

    @property
    def saved(self) -> float:
        """Share of the K/V memory that is saved."""
        return 1 - self.held / self.tokens


def sharing(groups: Mapping[str, Sequence[Tokens]], chunk_size: int, n_c: int) -> list[Sharing]:
    """The figures of every group, in order; `n_c` completion tokens follow each prompt."""
    return [_sharing(group, prompts, chunk_size, n_c) for group, prompts in groups.items()]


def _sharing(group: str, prompts: Sequence[Tokens], chunk_size: int, n_c: int) -> Sharing:
    # In lexicographic order, the prompt that shares most with another one stands beside it.
    ordered = sorted(prompts)
    beside = [shared_prefix(one, other) for one, other in itertools.pairwise(ordered)]
    shared = [max(left, right) for left, right in zip([0, *beside], [*beside, 0], strict=True)]
    lengths = [len(prompt) for prompt in ordered]
    tokens = sum(lengths) + n_c * len(prompts)
    # A chunk is shared where all of it is the same; what two neighbours share is stored once less.
    held = tokens - sum(length - length % chunk_size for length in beside)
    return Sharing(
        group=group,
        prompts=len(prompts),
        tokens_mean=fmean(lengths),
        shared_mean=fmean(shared),
        shared_max=max(shared),
        common=min(beside) if beside else 0,
        ratio=fmean(one / (length + n_c) for one, length in zip(shared, lengths, strict=True)),
        tokens=tokens,
        held=held,
    )


def shared_prefix(one: Tokens, other: Tokens) -> int:
    """Number of leading tokens that are the same."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # one[:low] is the same, one[:high] is not; slices are compared by C code
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low
