"""A request before it is sent."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TOKEN_IDS = 2**31
"""Token ids are below this, also where a model's vocabulary is not known."""


@dataclass(frozen=True)
class PlannedRequest:
    """What a client will send, and when."""

    due: float
    """Seconds after the start of the measurement, or after the end of the request `after`."""
    prompt: tuple[int, ...]
    """Token ids."""
    max_tokens: int
    """Tokens to generate."""
    after: int | None = None
    """Number in the plan of the request that has to end first; it comes before this one."""
