"""A request as a scheduler sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

from chunkbench.attention.text import Text


@dataclass(eq=False)
class Entry(ABC):
    """A request that waits or runs. The cache manager knows it by `arrival`."""

    arrival: int
    """Number of the request in order of arrival."""
    _: KW_ONLY
    computed: int = 0
    """Leading tokens whose K and V the cache holds, or gets in this step."""
    joined: int = 0
    """Tokens that it had when it was admitted last, or when several were appended at once. After a preemption its
    answer so far is among them."""
    cached_tokens: int | None = None
    """Tokens of the prompt that were not computed; None until the first part of the prompt is."""
    preempted: int = 0
    """How often its memory was taken away."""
    _prompt_keys: list[int] | None = None

    @property
    @abstractmethod
    def text(self) -> Text:
        """Its tokens, for the cache manager."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens of the prompt, and those generated so far."""

    def prompt_keys(self, block_tokens: int) -> list[int]:
        """Keys of the full blocks of its prompt. Computed once, so always ask with the same block size."""
        if self._prompt_keys is None:
            full = self.text.prompt // block_tokens
            self._prompt_keys = self.text.keys(block_tokens)[:full].tolist()
        return self._prompt_keys

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return self.length - self.text.prompt

    @property
    def grown(self) -> bool:
        """Whether several tokens were appended to it at once, which have no slots yet."""
        return self.length - 1 > self.computed >= self.joined > 0

    @property
    def decoding(self) -> bool:
        """Whether only the last token has to be computed, and it was generated since the admission."""
        return self.computed == self.length - 1 >= self.joined > 0

    def cut(self, tokens: int) -> None:
        """Only the first `tokens` tokens have K and V any more; those behind them were replaced."""
        self.computed = min(self.computed, tokens)
        self.joined = min(self.joined, tokens)
