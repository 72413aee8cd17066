"""Requests of replays, for tests."""

from __future__ import annotations

from chunkbench.attention.text import SegmentText
from chunkbench.traffic.replayed import ReplayRequest


def request(due: float, *prompt: tuple[int, int], answer: int, number: int) -> ReplayRequest:
    """A request whose prompt has these segments (ids and tokens); its answer is nobody else's."""
    text = SegmentText((*prompt, (1000 + number, answer)), sum(tokens for _, tokens in prompt))
    return ReplayRequest(due, text)
