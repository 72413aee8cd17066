"""Results of tree operations. The results tell the chunk store where to fill, append and copy."""

from __future__ import annotations

from typing import NamedTuple

from chunkbench.kernels.integers import Ints


class Join(NamedTuple):
    """A sequence has joined. Its tokens from position `cached` to the end go into `chunks`. The last chunk may be
    partial."""

    sequence: int
    cached: int
    """Number of leading tokens that the cache already held; a multiple of the chunk size."""
    chunks: Ints
    """New chunk ids, in token order; empty if the cache already held all tokens."""
    tokens: int
    """Number of tokens that go into `chunks`."""


class Append(NamedTuple):
    """Sequences got new tokens: token i goes into token slot `slots[i]` of chunk `chunks[i]`."""

    chunks: Ints
    slots: Ints
    new: Ints
    """The chunks among `chunks` that are new and still empty."""
    every_row: bool
    """Whether there is one token per row, token i for row i."""


class Copy(NamedTuple):
    """A copy that the store must make: the first `tokens` tokens of chunk `source` go to the new chunk `target`.

    `source` holds `held` tokens. If `target` is `source`, the tokens stay where they are. Also then, all later slots of
    `target` become free.
    """

    source: int
    target: int
    tokens: int
    held: int


class Fork(NamedTuple):
    """A sequence has joined with the tokens of another sequence. `copy` is None if the tokens end with a full chunk."""

    sequence: int
    copy: Copy | None
