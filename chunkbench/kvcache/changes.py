"""What an operation on the tree asks the chunk store to do: where to fill, append, copy and cut."""

from __future__ import annotations

from typing import NamedTuple

from chunkbench.kvcache.integers import Ints


class Join(NamedTuple):
    """A sequence has joined; its tokens `cached ..` go into `chunks`, chunk_size to each, the last perhaps partial."""

    sequence: int
    cached: int
    """Leading tokens that were there already; a multiple of the chunk size."""
    chunks: Ints
    """New chunk ids, in token order; empty when everything was there."""
    tokens: int
    """How many tokens go into them."""


class Append(NamedTuple):
    """Sequences took tokens: token i goes into slot `slots[i]` of chunk `chunks[i]`."""

    chunks: Ints
    slots: Ints
    new: Ints
    """Those of the chunks that did not exist before; nothing is in them yet."""
    every_row: bool
    """Whether token i is row i's, one for every row."""


class Copy(NamedTuple):
    """The first `tokens` slots of chunk `source` are to be copied to chunk `target`, which is new."""

    source: int
    target: int
    tokens: int


class Fork(NamedTuple):
    """A sequence has joined with the tokens of another; `copy` is None when it ends with a full chunk."""

    sequence: int
    copy: Copy | None


class Cut(NamedTuple):
    """A sequence now ends after the first `tokens` slots of `chunk`; what is in the others is void."""

    chunk: int
    tokens: int
