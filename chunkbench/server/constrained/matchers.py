"""A matcher keeps one answer within its constraint. There is a class for each method. All methods except `mask` also
append text without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chunkbench.attention.tokens import alike
from chunkbench.server.constrained.template import Place
from chunkbench.server.constrained.vocabulary import Vocabulary, whole_characters
from chunkbench.server.engine.request import Forced

Method = Literal["mask", "interleaved", "jump", "jump-retokenize", "forced-tokens"]


@dataclass
class Work:
    """The work that a matcher did for one answer so far. Times are in seconds."""

    sampled: int = 0
    """Number of tokens that the model chose."""
    pieces: int = 0
    """How many times text was appended without the model."""
    forced: int = 0
    """Number of tokens that were appended without the model."""
    rolled_back: int = 0
    """Number of tokens that were removed, because other tokens now write the same text."""
    mask_s: float = 0.0
    automaton_s: float = 0.0
    """Seconds for adding tokens to the constraint's automaton."""
    retokenize_s: float = 0.0
    """Seconds for converting text to tokens."""

    def facts(self, compile_s: float, spans: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """The facts for the log. `compile_s`: seconds that the request waited for its compiled constraint. `spans`:
        ranges of characters `[begin, end[` of the answer that were appended without the model."""
        return {**vars(self), "compile_s": compile_s, "spans": spans}


class Matcher:
    """Implements `engine.request.Matcher` with masks from llguidance, and counts the work.

    llguidance checks the whole answer in every method, also the text that is appended without the model.
    """

    rewrites = False

    def __init__(self, state: Any, vocabulary: Vocabulary) -> None:
        """`state`: an LLMatcher that no other answer uses."""
        self.work = Work()
        self._state = state
        self._vocabulary = vocabulary
        self._stuck = False

    def allow(self, bits: NDArray[np.int32]) -> None:
        began = perf_counter()
        self._allow(bits)
        self.work.mask_s += perf_counter() - began

    def allows(self, token: int) -> bool:
        """True if a quick test shows that the token may come next. A mask takes a hundred times as long. When the next
        text is forced, only a mask can tell, and the result is False."""
        began = perf_counter()
        known = not self._state.compute_ff_tokens() and self._state.validate_tokens([token]) == 1
        self.work.mask_s += perf_counter() - began
        return known

    def accept(self, token: int) -> None:
        began = perf_counter()
        self._accept(token)
        self.work.sampled += 1
        self.work.automaton_s += perf_counter() - began

    def forced(self, answer: Sequence[int], most: int) -> Forced | None:
        began, retokenized_s = perf_counter(), self.work.retokenize_s
        found = self._forced(answer, most)
        if found is not None:
            self.work.pieces += 1
            self.work.forced += len(found.tokens)
            self.work.rolled_back += len(answer) - found.kept
        self.work.automaton_s += perf_counter() - began - (self.work.retokenize_s - retokenized_s)
        return found

    @property
    def begins(self) -> bool:
        """Whether the model has a token that may come next."""
        return bool(self._mask().any())

    @property
    def complete(self) -> bool:
        if self._state.is_stopped():
            return not self._state.is_error()  # an error also stops llguidance
        # If only an end may come, and the model has no token for the end, the answer is complete.
        return self._vocabulary.endless and bool(self._state.is_accepting()) and not self.begins

    @property
    def error(self) -> str:
        error = " ".join(self._state.get_error().partition("<state>")[0].split())
        return error or "the model has no token that can follow this text" * self._stuck

    def _allow(self, bits: NDArray[np.int32]) -> None:
        bits[:] = self._mask()
        if self._state.is_error():
            bits[:] = 0
        self._stuck = not bits.any()

    def _mask(self) -> NDArray[np.int32]:
        """`[words]`: a bit for each token of the model that may come next."""
        writable = self._vocabulary.writable
        return np.frombuffer(self._state.compute_bitmask(), np.int32)[: len(writable)] & writable

    def _accept(self, token: int) -> None:
        self._state.consume_token(token)

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        return None

    def _write(self, tokens: Sequence[int]) -> bool:
        """Add tokens if llguidance accepts all of them; otherwise change nothing. Returns whether they were added."""
        return self._state.validate_tokens(tokens) == len(tokens) and bool(self._state.consume_tokens(tokens))


class ForcedTokensMatcher(Matcher):
    """Appends the forced tokens that llguidance finds.

    The model chooses the last token of a forced text if this token could be merged with later text.
    """

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        tokens: list[int] = []
        while (found := self._state.compute_ff_tokens()) and self._write(found):
            tokens += found
        return Forced(len(answer), tokens) if tokens else None


class JumpMatcher(Matcher):
    """Appends forced bytes as their canonical tokens.

    A byte is forced if it is the only edge from a state of the constraint's automaton, and the text may not end in
    this state. SGLang's paper calls consecutive forced bytes a compressed edge (section 4 and appendix B). llguidance
    builds the automaton while an answer grows.
    """

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        text = self._text()
        return self._append(answer, text) if text else None

    def _text(self) -> bytes:
        """The text that must follow, in whole characters; usually empty."""
        return whole_characters(self._state.compute_ff_bytes())

    def _append(self, answer: Sequence[int], text: bytes) -> Forced | None:
        """Append a text to the answer as its canonical tokens."""
        tokens = self._tokens(text)
        return Forced(len(answer), tokens) if tokens and self._write(tokens) else None

    def _tokens(self, text: bytes) -> list[int]:
        """The canonical tokens of a text; empty if these tokens stand for another text."""
        began = perf_counter()
        tokens = self._vocabulary.of_text(text)
        if self._vocabulary.text(tokens) != text:
            tokens = []
        self.work.retokenize_s += perf_counter() - began
        return tokens


class InterleavedMatcher(JumpMatcher):
    """Appends the fixed texts of a template, and lets the model fill the gaps between them."""

    def __init__(self, state: Any, vocabulary: Vocabulary, place: Place) -> None:
        super().__init__(state, vocabulary)
        self._place = place

    def _accept(self, token: int) -> None:
        super()._accept(token)
        self._place.walk(self._vocabulary.text([token]))

    def _text(self) -> bytes:
        return whole_characters(self._place.rest)

    def _append(self, answer: Sequence[int], text: bytes) -> Forced | None:
        found = super()._append(answer, text)
        if found:
            self._place.walk(text)
        return found


class RetokenizingMatcher(JumpMatcher):
    """Appends forced bytes, then replaces all tokens of the answer by the canonical tokens of its text.

    The model chooses the last token of a forced text if this token could be merged with later text.
    """

    rewrites = True

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        text = self._text()
        if not text:
            return None
        tokens = self._tokens(self._vocabulary.text(answer) + text)
        last = len(self._vocabulary.text(tokens[-1:]))
        if not tokens or len(tokens) > most:  # the new tokens do not fit, so the old ones stay
            return self._append(answer, text)
        if last == len(text) and self._longest() > last:
            return None  # only the last token is new
        written = answer
        if last < len(text) and self._rewrite(answer, tokens[:-1]):
            written = tokens[:-1]
            if self._longest() > last:
                tokens = tokens[:-1]
        if not self._rewrite(written, tokens):
            self._rewrite(written, answer)
            return self._append(answer, text)
        kept = alike(answer, tokens)
        return Forced(kept, tokens[kept:])

    def _rewrite(self, old: Sequence[int], new: Sequence[int]) -> bool:
        """Replace the tokens of an answer if llguidance accepts the new ones; otherwise change nothing. Returns whether
        they were replaced."""
        common = alike(old, new)
        if common < len(old):
            self._state.rollback(len(old) - common)
        if self._write(new[common:]):
            return True
        self._state.consume_tokens(old[common:])
        return False

    def _longest(self) -> int:
        """Bytes of the longest token that may come next."""
        bits = np.frombuffer(self._state.compute_bitmask(), np.uint8)
        lengths = self._vocabulary.lengths
        return int((lengths * np.unpackbits(bits, count=len(lengths), bitorder="little")).max())
