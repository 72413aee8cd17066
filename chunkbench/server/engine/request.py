"""A request, and its state while the engine answers it."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from chunkbench.attention.text import TokenText
from chunkbench.kernels.integers import Ints
from chunkbench.server.engine.errors import RequestRefused
from chunkbench.server.engine.logprobs import TokenLogprobs
from chunkbench.server.scheduling import Entry

Finish = Literal["length", "stop"]

COLD = 1e-5
"""Below this temperature the token with the largest logit is always chosen, as in vLLM."""


@dataclass(frozen=True)
class Sampling:
    """Parameters of the choice of tokens. With `temperature=0`, always the token with the largest logit (greedy)."""

    temperature: float = 0.0
    top_p: float = 1.0
    """Choose among the most probable tokens whose probabilities add up to this."""
    seed: int | None = None
    """Seed, from -2**63 to 2**64 - 1; None: a new seed. The same seed gives the same draws, whatever other requests a
    step has. But in bfloat16 other requests change how logits are rounded, and so sometimes a token."""
    top_k: int = 0
    """Choose among this number of the most probable tokens, before top_p. 0: all tokens (-1 in vLLM)."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise RequestRefused(f"temperature must lie between 0 and 100, not {self.temperature}", "temperature")
        if not 0 < self.top_p <= 1:
            raise RequestRefused(f"top_p must be above 0 and at most 1, not {self.top_p}", "top_p")
        if not -1 <= self.top_k < 2**31:
            raise RequestRefused(f"top_k must be at least 1, or 0 for all tokens, not {self.top_k}", "top_k")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise RequestRefused(f"seed must lie between -2**63 and 2**64 - 1, not {self.seed}", "seed")

    @property
    def greedy(self) -> bool:
        """Whether the token with the largest logit is always chosen."""
        return self.temperature < COLD or self.top_k == 1


class Forced(NamedTuple):
    """Tokens that a constraint appends without the model."""

    kept: int
    """Number of leading tokens of the answer that stay. The tokens after them are removed."""
    tokens: Ordered[int]
    """Tokens to append, at least one. They contain the text of the removed tokens."""


class Matcher(Protocol):
    """The state of an answer that must follow a constraint."""

    def allow(self, bits: NDArray[np.int32]) -> None:
        """Write into `bits` `[words]`: bit i of word w says whether token 32 w + i may come next."""

    def allows(self, token: int) -> bool:
        """Whether a token surely may come next. False if only a mask can decide this."""

    def accept(self, token: int) -> None:
        """Add an allowed token that the model chose."""

    def forced(self, answer: Ordered[int], most: int) -> Forced | None:
        """Add the tokens that must follow the answer, and return them; None, the usual case, if no token is forced.

        `most`: maximum number of tokens of the answer.
        """

    @property
    def complete(self) -> bool:
        """Whether the answer is complete, and no more text may follow."""

    @property
    def error(self) -> str:
        """Why no token can come next; empty if a token can."""


@dataclass(frozen=True)
class Request:
    """The token ids of a prompt, and the answer to generate."""

    id: str
    prompt: Ordered[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: frozenset[int] = frozenset()
    """Token ids after which the answer ends, besides the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """Whether to continue after the model's end-of-sequence ids."""
    min_tokens: int = 0
    """No token that would end the answer is chosen before the answer has this number of tokens."""
    logprobs: int | None = None
    """Number of most probable tokens whose log-probabilities come with each token of the answer, besides that of the
    token itself. None: no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, all of which are then computed, also cached ones."""
    matcher: Matcher | None = field(default=None, compare=False, repr=False)
    """State of the constraint that the answer must follow; only this request may use it."""

    def check(self, most_tokens: int, vocabulary: int) -> None:
        """Raise RequestRefused if a server that takes at most `most_tokens` tokens and has `vocabulary` token ids
        cannot answer the request."""
        prompt, total = len(self.prompt), len(self.prompt) + self.max_tokens
        if prompt == 0:
            raise RequestRefused("the prompt is empty: it needs at least one token")
        if self.max_tokens < 1:
            raise RequestRefused(f"max_tokens must be at least 1, not {self.max_tokens}", "max_tokens")
        if not 0 <= self.min_tokens <= self.max_tokens:
            most = f"at least 0 and at most max_tokens = {self.max_tokens}"
            raise RequestRefused(f"min_tokens must be {most}, not {self.min_tokens}", "min_tokens")
        if self.matcher is not None and self.min_tokens:
            raise RequestRefused("a constraint decides when an answer ends: leave min_tokens out", "min_tokens")
        if total > most_tokens:
            raise RequestRefused(
                f"the prompt has {prompt} tokens and max_tokens is {self.max_tokens}, together {total}: "
                f"this server takes at most {most_tokens}"
            )
        if min(self.prompt) < 0 or max(self.prompt) >= vocabulary:
            raise RequestRefused(f"token ids of the prompt must lie between 0 and {vocabulary - 1}")


@dataclass(frozen=True)
class Generated:
    """A token of an answer."""

    request: str
    token: int
    finish: Finish | None
    """Why the answer ends with this token; None if it continues."""
    cached_tokens: int | None
    """Tokens of the prompt that were not computed for this request; None if the engine does not say."""
    forced: bool = False
    """Whether the request's constraint left no choice, and the token was appended without the model."""
    replaces: int = 0
    """Number of tokens before this one that are no longer part of the answer, because other tokens replace them."""
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    """With the first token of an answer, for each token of the prompt; None for the first token, which follows
    nothing. Empty if the request does not ask for them."""


@dataclass(frozen=True)
class GrowingText:
    """The text of a request whose answer is being generated."""

    ids: list[int]
    """Token ids of the prompt and of the answer so far."""
    prompt: int
    total: int
    """Number of tokens of the prompt and of the longest possible answer."""
    whole: bool = False
    """Whether all tokens must be computed, also cached ones, because logits of the prompt are asked for."""

    def keys(self, block_tokens: int) -> Ints:
        return TokenText(self.ids, self.prompt, self.total).keys(block_tokens)

    def tokens(self, first: int, last: int) -> Ints:
        if (first, last) == (0, self.prompt):
            return self._prompt_ids
        return np.array(self.ids[first:last], np.int64)

    @cached_property
    def _prompt_ids(self) -> Ints:
        # A scheduler that looks up prompts asks for them at every step.
        return np.array(self.ids[: self.prompt], np.int64)


@dataclass(eq=False)
class Sequence(Entry):
    """A request in the engine."""

    request: Request
    tokens: list[int]
    """Tokens of the prompt and of the answer so far."""
    ends: frozenset[int] = frozenset()
    """Token ids that end the answer."""
    random: torch.Generator | None = field(default=None, repr=False)
    others: list[Sequence] = field(default_factory=list, repr=False)
    """Other answers to the same prompt. They become sequences of their own when the prompt is computed."""

    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None], repr=False)
    """Log-probabilities of the tokens of the prompt, as far as they are computed."""

    @property
    def width(self) -> int:
        return 1 + len(self.others)

    @cached_property
    def text(self) -> GrowingText:
        """The tokens of the sequence, for the cache."""
        prompt = len(self.request.prompt)
        whole = self.request.prompt_logprobs is not None
        return GrowingText(self.tokens, prompt, prompt + self.request.max_tokens, whole)

    @property
    def length(self) -> int:
        """Number of tokens so far."""
        return len(self.tokens)
