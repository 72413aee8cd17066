"""A request, and its state in the engine."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from chunkbench.attention.text import TokenText
from chunkbench.kernels.integers import Ints
from chunkbench.server.engine.beams import Beam, BeamOptions, BeamSearch
from chunkbench.server.engine.drafts import NgramDraft
from chunkbench.server.engine.errors import RequestRefused
from chunkbench.server.engine.logprobs import TokenLogprobs
from chunkbench.server.scheduling import Entry

Finish = Literal["length", "stop"]

COLD = 1e-5
"""Temperature below which the token with the largest logit is always chosen, as in vLLM."""


@dataclass(frozen=True)
class Sampling:
    """Says how tokens are chosen. `temperature=0`: always the token with the largest logit (greedy)."""

    temperature: float = 0.0
    top_p: float = 1.0
    """Draw only from the most probable tokens whose probabilities add up to `top_p`."""
    seed: int | None = None
    """Seed of the random draws, from -2**63 to 2**64 - 1. None: a new seed. The draws depend only on the seed, not on
    other requests of a step. In bfloat16, however, other requests can change the rounding of logits. A different token
    may then be chosen."""
    top_k: int = 0
    """Draw only from this number of the most probable tokens, before `top_p` applies. 0, or -1 as in vLLM: all
    tokens."""

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
        return self.temperature < COLD or self.top_k == 1


class Forced(NamedTuple):
    """Tokens that a constraint appends to an answer without the model."""

    kept: int
    """Number of leading tokens of the answer that stay. The other tokens of the answer are replaced."""
    tokens: Ordered[int]
    """Tokens to append after the kept tokens, at least one. Their text begins with the text of the replaced tokens."""


class Matcher(Protocol):
    """Keeps one answer within its constraint."""

    def allow(self, bits: NDArray[np.int32]) -> None:
        """Write a mask of the allowed next tokens into `bits` `[words]`: bit i of word w stands for token 32 w + i."""

    def allows(self, token: int) -> bool:
        """True if the token may come next. False if it may not, or if only a mask can tell."""

    def accept(self, token: int) -> None: ...

    def forced(self, answer: Ordered[int], most: int) -> Forced | None:
        """Add the tokens that must follow the answer, and return them. Usually no token is forced, and the result is
        None.

        `most`: maximum number of tokens of the answer.
        """

    @property
    def complete(self) -> bool:
        """Whether the answer follows the constraint and nothing may follow it."""

    @property
    def error(self) -> str:
        """Why no token can come next; empty if a token can."""


@dataclass(frozen=True)
class Request:
    """A request for one answer to a prompt of token ids."""

    id: str
    prompt: Ordered[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer, in addition to the model's end-of-sequence ids."""
    ignore_eos: bool = False
    """If True, the model's end-of-sequence ids do not end the answer."""
    min_tokens: int = 0
    """Before the answer has this number of tokens, no token is chosen that would end it."""
    logprobs: int | None = None
    """Number of most probable tokens to list for each token of the answer, with their log-probabilities. None: no
    log-probabilities at all, not even of the answer's tokens."""
    prompt_logprobs: int | None = None
    """Number of most probable tokens to list for each token of the prompt; None: no log-probabilities. With a
    number, cached tokens of the prompt are computed again."""
    beams: BeamOptions | None = None
    """Search for the likeliest answers, one for each request of a group, instead of drawing them. The tokens of all
    answers come at the end."""
    cache_salt: str = ""
    """Prompts share K/V only with prompts that have the same salt."""
    matcher: Matcher | None = field(default=None, compare=False, repr=False)
    """Keeps the answer within its constraint. No other request may use this object."""

    def check(self, most_tokens: int, vocabulary: int) -> None:
        """Raise RequestRefused if the request is not valid for a server with a vocabulary of this size.
        `most_tokens`: maximum number of tokens of prompt and answer together."""
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
    """A new token of an answer."""

    request: str
    token: int
    finish: Finish | None
    """Why the answer ends with this token. None: the answer continues."""
    cached_tokens: int | None
    """Number of prompt tokens that were not computed for this request; None if the engine does not say."""
    forced: bool = False
    """True if the constraint allowed only this token, so that it was appended without the model."""
    replaces: int = 0
    """Number of tokens directly before this one that are removed from the answer."""
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    """Log-probabilities of the prompt's tokens, if the request asks for them. Only the first token of an answer has
    them; otherwise the tuple is empty. The entry of the first prompt token is None."""


@dataclass(frozen=True)
class GrowingText:
    """The token ids of a request, while its answer grows."""

    ids: list[int]
    """Token ids of the prompt and of the answer so far."""
    prompt: int
    total: int
    """Maximum number of tokens of prompt and answer together."""
    salt: int = 0
    """Number that is added to the first token id. So the cache finds only prompts with the same salt."""
    whole: bool = False
    """If True, cached tokens are computed again, because the request needs the logits of its prompt."""

    def keys(self, block_tokens: int) -> Ints:
        salted = [self.ids[0] + self.salt, *self.ids[1:]]
        return TokenText(salted, self.prompt, self.total).keys(block_tokens)

    def tokens(self, first: int, last: int) -> Ints:
        if (first, last) == (0, self.prompt):
            return self._prompt_ids
        tokens = np.array(self.ids[first:last], np.int64)
        if first == 0:
            tokens[0] += self.salt
        return tokens

    @cached_property
    def _prompt_ids(self) -> Ints:
        # A scheduler that looks up prompts asks for them at every step.
        return self.tokens(0, self.prompt + 1)[: self.prompt]


def _number_of(salt: str) -> int:
    """A number above all token ids for a salt; 0 without a salt."""
    return 2**61 + int.from_bytes(sha256(salt.encode()).digest()[:7]) if salt else 0


@dataclass(eq=False)
class Sequence(Entry):
    """A request with the state that the engine keeps for it."""

    request: Request
    tokens: list[int]
    """Token ids of the prompt and of the answer so far."""
    ends: frozenset[int] = frozenset()
    """Token ids that end the answer."""
    random: torch.Generator | None = field(default=None, repr=False)
    others: list[Sequence] = field(default_factory=list, repr=False)
    """Requests for more answers to the same prompt. Each becomes a sequence when the prompt is computed."""

    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None], repr=False)
    """Log-probabilities of the prompt's tokens that were computed so far."""

    group: BeamGroup | None = field(default=None, repr=False)
    """The beam search of which this sequence is a beam."""

    drafter: NgramDraft = field(default_factory=NgramDraft, repr=False)
    before_draft: torch.Tensor | None = field(default=None, repr=False)
    """State of `generator` before the step of a draft; None if nothing is drawn."""

    @property
    def generator(self) -> torch.Generator:
        """The random numbers of this answer, one for each token that is drawn."""
        if self.random is None:
            self.random = torch.Generator()
            if self.request.sampling.seed is None:
                self.random.seed()
            else:
                self.random.manual_seed(self.request.sampling.seed)
        return self.random

    def drawn_only(self, tokens: int) -> None:
        """Take back the draws of a draft, but for its first `tokens` tokens. So the draws depend only on the seed."""
        if self.before_draft is not None:
            self.generator.set_state(self.before_draft)
            for _ in range(tokens):
                torch.rand((), generator=self.generator)

    @property
    def may_draft(self) -> bool:
        """Whether several tokens may be verified in one step. Constraints, log-probabilities and beams need the tokens
        one by one."""
        request = self.request
        plain = request.matcher is None and request.logprobs is None and self.group is None
        return plain and self.generated >= request.min_tokens and self.decoding

    @property
    def mates(self) -> Ordered[Entry]:
        return (self,) if self.group is None else self.group.slots

    def restart(self) -> None:
        super().restart()
        if self.group is not None:
            self.group.restart()

    @property
    def width(self) -> int:
        return 1 + len(self.others)

    @cached_property
    def text(self) -> GrowingText:
        prompt = len(self.request.prompt)
        whole = self.request.prompt_logprobs is not None
        salt = _number_of(self.request.cache_salt)
        return GrowingText(self.tokens, prompt, prompt + self.request.max_tokens, salt, whole)

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(eq=False)
class BeamGroup:
    """A beam search in the engine. Each running beam is a sequence of its own, which shares chunks with the others."""

    search: BeamSearch
    slots: list[Sequence]
    """One sequence for each answer. A slot without a beam waits until it gets one."""
    live: list[Sequence] = field(default_factory=list)
    """The running beams, in the order of the search."""
    rows: dict[Sequence, Beam] = field(default_factory=dict)
    """The likeliest next tokens of the beams that this step has computed."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again with the prompt."""
        first, *others = self.slots
        for slot in self.slots:
            del slot.tokens[len(slot.request.prompt) :]
        first.others, self.live, self.rows = others, [first], {}
        self.search.restart()
