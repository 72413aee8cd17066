"""The tokens of a request in the form that cache managers use: equal keys mean equal tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from chunkbench.attention.errors import WrongTokens
from chunkbench.attention.tokens import Tokens, token_array
from chunkbench.kernels.integers import Ints

_MOST_BLOCKS = 1 << 24
"""Factor in the keys and token ids of a `SegmentText`: id of the segment * this + position. A text has fewer tokens
than this, so a different id or position gives a different number."""
_MOST_SEGMENTS = 1 << 38
"""Ids of segments are smaller than this, so that keys and token ids have at most 62 bits."""


class Text(Protocol):
    """The tokens of a request: its prompt and the answer that follows."""

    @property
    def prompt(self) -> int:
        """Number of tokens of the prompt."""
        ...

    @property
    def total(self) -> int:
        """Number of tokens of prompt and answer. While the answer is not known, its largest possible length counts."""
        ...

    def keys(self, block_tokens: int) -> Ints:
        """A key for each full block of the known tokens. A key identifies the block and all tokens before it."""
        ...

    def tokens(self, first: int, last: int) -> Ints:
        """Token ids `first` to `last - 1`."""
        ...


@dataclass(frozen=True)
class TokenText:
    """A text whose token ids are known. Keys are chained hashes of 8 bytes."""

    ids: Tokens
    """Token ids of the prompt and of the known part of the answer."""
    prompt: int
    total: int

    @cached_property
    def _array(self) -> Ints:
        return token_array(self.ids)

    def keys(self, block_tokens: int) -> Ints:
        data, size = self._array.tobytes(), block_tokens * 8
        digest, keys = b"", []
        for begin in range(0, len(data) - size + 1, size):
            digest = hashlib.blake2b(digest + data[begin : begin + size], digest_size=8).digest()
            keys.append(digest)
        return np.frombuffer(b"".join(keys), np.int64)

    def tokens(self, first: int, last: int) -> Ints:
        return self._array[first:last]


@dataclass(frozen=True)
class SegmentText:
    """A text made of segments whose ids stand for their tokens, as in traces that keep ids of blocks.

    Two segments with equal ids have equal tokens, and equal tokens before them. Segments with different ids differ from
    their first token on. So an id and a position in the text together identify all tokens up to that position.
    """

    segments: Sequence[tuple[int, int]]
    """Segments of the prompt, then of the answer: id (from 0 on, below 2**38) and number of tokens."""
    prompt: int

    def __post_init__(self) -> None:
        if not all(0 <= segment < _MOST_SEGMENTS for segment, _ in self.segments):
            raise WrongTokens(f"ids of segments lie between 0 and {_MOST_SEGMENTS - 1}")
        if self.total >= _MOST_BLOCKS:
            raise WrongTokens(f"a text has at most {_MOST_BLOCKS - 1} tokens, not {self.total}")

    @cached_property
    def total(self) -> int:
        """Tokens of prompt and answer."""
        return sum(tokens for _, tokens in self.segments)

    def keys(self, block_tokens: int) -> Ints:
        blocks = np.arange(self.total // block_tokens)
        return self._ids[np.searchsorted(self._ends, (blocks + 1) * block_tokens)] * _MOST_BLOCKS + blocks

    def tokens(self, first: int, last: int) -> Ints:
        places = np.arange(first, min(last, self.total))
        return self._ids[np.searchsorted(self._ends, places, side="right")] * _MOST_BLOCKS + places

    @cached_property
    def _ids(self) -> Ints:
        return np.array([segment for segment, _ in self.segments], np.int64)

    @cached_property
    def _ends(self) -> Ints:
        return np.cumsum([tokens for _, tokens in self.segments], dtype=np.int64)
