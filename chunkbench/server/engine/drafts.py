"""Drafts of n-grams (prompt look-up): what followed the last tokens of a sequence when they occurred before."""

from __future__ import annotations

from collections.abc import Sequence

SIZES = (4, 2)
"""Lengths of the n-grams that are looked up, the longest first."""
CHEAP_ROWS = 8
"""Rows of a step up to which drafted tokens cost little. With more rows, the arithmetic of linear layers takes longer
than reading their weights: from about F/B rows on, in 2 bytes, F in FLOP/s and B in bytes/s of a CPU."""
MOST_PATIENCE = 32
"""Largest number of steps without a draft after drafts of which no token was accepted."""


class NgramDraft:
    """Finds drafts for one sequence, and drafts less often while they are rejected."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        """N-gram -> the place after its last occurrence."""
        self._seen = 0
        self._rejected = 0  # drafts in a row of which no token was accepted
        self._waits = 0  # steps until the next draft

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most `most` tokens that may follow these tokens of the sequence, all of it."""
        for end in range(self._seen, len(tokens)):
            for size in SIZES:
                if end >= size:
                    self._after[tuple(tokens[end - size : end])] = end
        self._seen = len(tokens)
        if self._waits:
            self._waits -= 1
            return []
        for size in SIZES:
            place = self._after.get(tuple(tokens[-size:])) if len(tokens) >= size else None
            if place is not None:
                return list(tokens[place : place + most])
        return []

    def tell(self, accepted: int) -> None:
        """How many tokens of the last draft the model chose, too."""
        self._rejected = 0 if accepted else self._rejected + 1
        self._waits = min(MOST_PATIENCE, 2**self._rejected - 1)
