"""The state of one answer that follows a constraint, and what each method writes without the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chunkbench.kvcache.tokens import alike
from chunkbench.serving.constrained.automaton import BEGIN, Automaton
from chunkbench.serving.constrained.recent import Recent
from chunkbench.serving.engine.request import Forced

Method = Literal["mask", "interleaved", "jump", "jump-retokenize", "forced-tokens"]
Masks = Recent[tuple[int, int], NDArray[np.int32]]
"""(number of an automaton, state) -> its mask."""


@dataclass
class Work:
    """What one answer took so far, beside the model. Times in seconds."""

    sampled: int = 0
    """Tokens that the model chose."""
    pieces: int = 0
    """Texts that were appended without it."""
    forced: int = 0
    """Their tokens."""
    rolled_back: int = 0
    """Tokens that were taken back, because the text is written otherwise with what follows."""
    mask_s: float = 0.0
    automaton_s: float = 0.0
    """Following the constraint from token to token."""
    retokenize_s: float = 0.0
    """Tokenising what is appended, or the whole answer."""

    def facts(self, compile_s: float, spans: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """For the log. `compile_s`: how long the request waited for its constraint; `spans`: characters of the answer
        `[begin, end[` that were appended without the model."""
        return {**vars(self), "compile_s": compile_s, "spans": spans}


class Matcher(ABC):
    """Follows a constraint, and counts what it does. It fulfils `engine.request.Matcher`."""

    rewrites = False

    def __init__(self) -> None:
        self.work = Work()

    def allow(self, bits: NDArray[np.int32]) -> None:
        """Write into `bits` `[words]`: bit i of word w says whether token 32 w + i may come next."""
        began = perf_counter()
        self._allow(bits)
        self.work.mask_s += perf_counter() - began

    def accept(self, token: int) -> None:
        """Go on by an allowed token that the model chose."""
        began = perf_counter()
        self._accept(token)
        self.work.sampled += 1
        self.work.automaton_s += perf_counter() - began

    def forced(self, answer: Sequence[int], most: int) -> Forced | None:
        """What follows without the model; see `engine.request.Matcher`."""
        began, retokenized_s = perf_counter(), self.work.retokenize_s
        found = self._forced(answer, most)
        if found is not None:
            self.work.pieces += 1
            self.work.forced += len(found.tokens)
            self.work.rolled_back += len(answer) - found.kept
        self.work.automaton_s += perf_counter() - began - (self.work.retokenize_s - retokenized_s)
        return found

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the answer is one that follows the constraint, and nothing may come after it."""

    @property
    @abstractmethod
    def error(self) -> str:
        """Why no token can come next: a limit was reached. Empty if one can."""

    @abstractmethod
    def _allow(self, bits: NDArray[np.int32]) -> None: ...

    @abstractmethod
    def _accept(self, token: int) -> None: ...

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        return None


class GrammarMatcher(Matcher):
    """Masks by llguidance."""

    def __init__(self, state: Any) -> None:
        """`state`: an LLMatcher of this answer alone."""
        super().__init__()
        self._state = state

    @property
    def complete(self) -> bool:
        return bool(self._state.is_stopped())

    @property
    def error(self) -> str:
        return str(self._state.get_error())

    def _allow(self, bits: NDArray[np.int32]) -> None:
        self._state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)

    def _accept(self, token: int) -> None:
        self._state.consume_token(token)


class ForcedTokensMatcher(GrammarMatcher):
    """Appends tokens that the constraint leaves no choice about, as llguidance finds them.

    The last one of a text stays open where it may merge with what follows.
    """

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        tokens: list[int] = []
        while found := self._state.compute_ff_tokens():
            self._state.consume_tokens(found)
            tokens += found
        return Forced(len(answer), tokens) if tokens else None


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model."""

    library: Any
    """An LLTokenizer."""
    lengths: NDArray[np.int32]
    """[token] bytes of its text; 0 for special ones."""

    @classmethod
    def of(cls, library: Any) -> Vocabulary:
        """Takes some 20 ms."""
        texts = (b"" if library.is_special_token(n) else library.decode_bytes([n]) for n in range(library.vocab_size))
        return cls(library, np.array([len(text) for text in texts], np.int32))

    def text(self, tokens: Sequence[int]) -> bytes:
        """Without special tokens."""
        text: bytes = self.library.decode_bytes([token for token in tokens if self.lengths[token]])
        return text

    def of_text(self, text: bytes) -> list[int]:
        """The canonical tokens of a text."""
        tokens: list[int] = self.library.tokenize_bytes(text)
        return tokens


class RegexMatcher(GrammarMatcher):
    """Follows the automaton of a regular expression: in a state that was there before, the mask is known.

    llguidance learns of the tokens when a mask is not.
    """

    def __init__(self, state: Any, vocabulary: Vocabulary, automaton: Automaton, masks: Masks) -> None:
        """`masks` belongs to all matchers of a server."""
        super().__init__(state)
        self._vocabulary = vocabulary
        self._automaton = automaton
        self._masks = masks
        self._place = BEGIN
        self._answer: list[int] = []
        self._consumed: list[int] = []
        """What llguidance knows of the answer."""

    @property
    def complete(self) -> bool:
        return self._automaton.complete(self._place)

    @property
    def matches(self) -> bool:
        """Whether the answer may end here."""
        return self._automaton.ends(self._place)

    def _allow(self, bits: NDArray[np.int32]) -> None:
        key = self._automaton.number, self._place
        known = self._masks.get(key)
        if known is not None:
            bits[:] = known
            return
        self._catch_up()
        super()._allow(bits)
        self._masks.keep(key, bits.copy())

    def _catch_up(self) -> None:
        """Let llguidance know the answer."""
        common = alike(self._consumed, self._answer)
        if common < len(self._consumed):
            self._state.rollback(len(self._consumed) - common)
        self._state.consume_tokens(self._answer[common:])
        self._consumed = self._answer.copy()

    def _accept(self, token: int) -> None:
        self._answer.append(token)
        self._place = self._automaton.walk(self._place, self._vocabulary.text([token]))

    def _append(self, text: bytes) -> Forced:
        """Write a text behind the answer, by its canonical tokens."""
        began, kept = perf_counter(), len(self._answer)
        tokens = self._vocabulary.of_text(text)
        self.work.retokenize_s += perf_counter() - began
        self._answer += tokens
        self._place = self._automaton.walk(self._place, text)
        return Forced(kept, tokens)


class JumpMatcher(RegexMatcher):
    """Appends the text of a compressed edge, by its canonical tokens."""

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        text = self._automaton.jump(self._place)
        return self._append(text) if text else None


class RetokenizingMatcher(RegexMatcher):
    """Appends the text of a compressed edge, and writes the whole answer with the tokens that it then has.

    The last token stays open where it may merge with what follows.
    """

    rewrites = True

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        text = self._automaton.jump(self._place)
        if not text:
            return None
        began = perf_counter()
        written = self._vocabulary.text(answer)
        tokens = self._vocabulary.of_text(written + text)
        whole = self._vocabulary.text(tokens) == written + text
        self.work.retokenize_s += perf_counter() - began
        last = self._vocabulary.text(tokens[-1:])
        if len(last) == len(text) and self._longest(self._answer, self._place) > len(last):
            return None  # nothing but the last token is new
        if len(tokens) > most or not whole:
            # It does not fit in other tokens, or the tokenizer changes texts: what was written stays.
            return self._append(text)
        place = self._automaton.walk(self._place, text)
        if len(last) < len(text):
            before = self._automaton.walk(self._place, text[: -len(last)])
            if self._longest(tokens[:-1], before) > len(last):
                tokens, place = tokens[:-1], before
        self._answer, self._place = tokens, place
        kept = alike(answer, tokens)
        return Forced(kept, tokens[kept:])

    def _longest(self, answer: list[int], place: int) -> int:
        """Bytes of the longest token that may follow an answer, which leads to a place. The answer may then be this."""
        known = self._automaton.longest.get(place)
        if known is None:
            self._answer, self._place = answer, place  # for the mask
            bits = np.empty(-(-len(self._vocabulary.lengths) // 32), np.int32)
            self._allow(bits)
            allowed = np.unpackbits(bits.view(np.uint8), count=len(self._vocabulary.lengths), bitorder="little")
            known = self._automaton.longest[place] = int((self._vocabulary.lengths * allowed).max())
        return known


@dataclass(frozen=True)
class Gap:
    """A gap of a template, and the fixed text behind it."""

    matcher: Callable[[], RegexMatcher]
    """Follows the gap and the first character behind it."""
    rest: Sequence[int]
    """Tokens of the fixed text without its first character."""
    last: bool
    """Whether no text is fixed behind it: the answer ends with the gap."""


class InterleavedMatcher(Matcher):
    """Fills the gaps of a template one after the other; the fixed text between them is appended.

    A gap ends with the first character of the text behind it, where the gap may end there.
    """

    def __init__(self, begin: Sequence[int], gaps: Sequence[Gap]) -> None:
        """`begin`: tokens of the fixed text before the first gap. Without a gap it is the whole answer."""
        super().__init__()
        self._fixed = list(begin)
        """Tokens of the fixed text that is next; empty inside a gap."""
        self._gaps = list(gaps)
        self._begin_gap()

    def _begin_gap(self) -> None:
        if self._gaps:
            self._gap = self._gaps[0].matcher()

    @property
    def complete(self) -> bool:
        return not self._fixed and (not self._gaps or (self._gaps[0].last and self._gap.complete))

    @property
    def error(self) -> str:
        return self._gap.error

    def _allow(self, bits: NDArray[np.int32]) -> None:
        self._gap._allow(bits)

    def _accept(self, token: int) -> None:
        self._gap._accept(token)
        if not self._gaps[0].last and self._gap.matches:
            self._fixed = list(self._gaps.pop(0).rest)
            self._begin_gap()

    def _forced(self, answer: Sequence[int], most: int) -> Forced | None:
        tokens, self._fixed = self._fixed, []
        return Forced(len(answer), tokens) if tokens else None
