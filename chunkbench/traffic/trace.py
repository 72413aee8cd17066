"""A trace: requests of real traffic. Also reads the numbers in trace files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

MOST_TOKENS = 2**24 - 1
"""Maximum number of tokens of a prompt, and of an answer."""


class TraceError(ValueError):
    """A trace cannot be read. The message names file and line."""


class TraceRequest(NamedTuple):
    due: float
    """Due time in seconds after the first request. In ChunkBench's own format: after the start of the measurement."""
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]
    """Number of each block of the prompt, from 0 on; the last block may be partial. Equal numbers mean that the
    blocks, and all blocks before them, are equal. Empty if the trace says nothing about sharing."""
    prompt: tuple[int, ...] = ()
    """Token ids of the prompt; empty if the trace has only lengths."""
    session: int | None = None
    """Number of the conversation; None if the request belongs to none."""
    delay: float | None = None
    """Seconds between the answer to the turn before and this request; None if only `due` counts. If there is a delay,
    `due` assumes that the answer to the turn before took no time."""


@dataclass(frozen=True)
class Trace:
    """The requests of a trace file, in order of due time."""

    format: str
    requests: tuple[TraceRequest, ...]
    block_tokens: int
    """Number of tokens of a block; 0 if the trace says nothing about sharing."""
    notes: tuple[str, ...]
    """Facts that a reader of results should know, such as lines that were left out."""
    timed: bool = True
    """Whether the file has due times. Otherwise all requests are due at 0."""

    @property
    def has_token_ids(self) -> bool:
        """Whether the trace holds the token ids of prompts, which only ChunkBench's own format does."""
        return bool(self.requests[0].prompt)

    def first(self, count: int, longest: int | None = None) -> list[TraceRequest]:
        """The first `count` requests with at most `longest` tokens in prompt and answer. Raises ValueError if there
        are none."""
        fitting = [r for r in self.requests if longest is None or r.prompt_tokens + r.answer_tokens <= longest][:count]
        if not fitting:
            raise ValueError(f"no request of the trace has at most {longest} tokens")
        return fitting


def plain_number(value: Any) -> float:
    """Convert a value or text to a number; NaN for True and False. Raises ValueError, also for text that only Python
    reads as a number: `1_000`, or digits of other scripts."""
    python_only = isinstance(value, str) and ("_" in value or not value.isascii())
    try:
        return math.nan if isinstance(value, bool) else float("" if python_only else value)
    except OverflowError:
        return math.inf
    except (ValueError, TypeError):
        raise ValueError(f"{repr(value)[:22]} is not a number") from None


def count(value: Any, name: str = "tokens") -> int:
    """Convert a value to a number of tokens. Raises ValueError."""
    found = plain_number(value)
    if not (1 <= found <= MOST_TOKENS and found == int(found)):
        raise ValueError(f"{name} is {str(value)[:20]}; it must be a whole number from 1 on, at most {MOST_TOKENS:,}")
    return int(found)


def seconds(value: Any) -> float:
    """Convert a value to a time, in the unit of the file. Raises ValueError."""
    found = plain_number(value)
    if not 0 <= found < math.inf:
        raise ValueError(f"the time is {str(value)[:20]}; it must be a number from 0 on")
    return abs(found)  # -0.0 is 0
