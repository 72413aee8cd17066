"""A request before it is sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedRequest:
    """What a client will send, and when."""

    due: float
    """Seconds after the start of the measurement."""
    prompt: tuple[int, ...]
    """Token ids."""
    max_tokens: int
    """Tokens to generate."""
