"""A request, and its state while the engine answers it."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Literal

import torch

Finish = Literal["length", "stop"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `temperature=0`: always the token with the largest logit (greedy)."""

    temperature: float = 0.0
    top_p: float = 1.0
    """Choose among the most probable tokens whose probabilities add up to this."""
    seed: int | None = None
    """Same seed, same tokens, whatever the other requests of a step are; None: a new seed."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"temperature must lie between 0 and 100, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")


@dataclass(frozen=True)
class Request:
    """Token ids of a prompt, and what to generate."""

    id: str
    prompt: Ordered[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: frozenset[int] = frozenset()
    """Token ids after which the answer ends, besides the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence ids."""


@dataclass(frozen=True)
class Generated:
    """A token of an answer."""

    request: str
    token: int
    finish: Finish | None
    """Why the answer ends with this token; None if it goes on."""
    cached_tokens: int | None
    """Tokens of the prompt that were not computed for this request; None if the engine does not say."""


@dataclass(eq=False)
class Sequence:
    """A request in the engine."""

    request: Request
    arrival: int
    """Number of the request in order of arrival."""
    tokens: list[int]
    """Prompt and generated tokens."""
    handle: int | None = None
    """Id in the cache; None while the request waits."""
    computed: int = 0
    """Leading tokens whose K and V the cache holds."""
    cached_tokens: int | None = None
    """None until the first part of the prompt is computed."""
    preempted: int = 0
    """How often its chunks were taken away."""
    random: torch.Generator | None = field(default=None, repr=False)

    @property
    def generated(self) -> int:
        """Number of generated tokens."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def decoding(self) -> bool:
        """Whether only the last token has to be computed, and it is a generated one."""
        return self.handle is not None and self.generated > 0 and self.computed == len(self.tokens) - 1
