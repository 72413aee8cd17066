"""What can go wrong in the cache. Every operation that raises one of these leaves the cache exactly as it was."""

from __future__ import annotations


class KVCacheError(Exception):
    """Base of all errors of the cache."""


class UnknownSequence(KVCacheError, KeyError):
    """The id was never given out, or its sequence has left."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message, quotes included.
        return str(self.args[0])


class EmptySequence(KVCacheError, ValueError):
    """A sequence of no tokens has no attention: there is nothing to take the softmax over."""


class WrongTokens(KVCacheError, ValueError):
    """Token ids that are not a flat list of integers, or not one for every live sequence."""


class SharedChunk(KVCacheError, ValueError):
    """The operation would change a chunk that other sequences cover too."""


class PoolExhausted(KVCacheError, ValueError):
    """More chunks are needed than the pool may hold."""
