"""Errors of the cache. An operation that raises one of them leaves the cache unchanged."""

from __future__ import annotations


class KVCacheError(Exception):
    """Base class of all errors of the cache."""


class UnknownSequence(KVCacheError, KeyError):
    """No live sequence has this id: the id was never assigned, or the sequence has left."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message, quotes included.
        return str(self.args[0])


class EmptySequence(KVCacheError, ValueError):
    """A sequence without tokens: attention needs at least one token for its softmax."""


class WrongTokens(KVCacheError, ValueError):
    """Token ids are not a flat list of integers, or their number does not fit the sequences."""


class PoolExhausted(KVCacheError, ValueError):
    """More chunks are needed than the pool may hold."""
