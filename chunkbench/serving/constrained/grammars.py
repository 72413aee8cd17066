"""Constraints compiled for a tokenizer, each once, and the state of answers that follow them (llguidance)."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chunkbench.serving.constrained.constraint import Constraint, ConstraintRefused

MOST_COMPILED = 128
"""Constraints that are kept; the one that was used longest ago goes first."""
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
"""JSON without optional whitespace: else nothing of an answer is forced."""
_MESSAGE_CHARACTERS = 400
_FUEL = 2_000_000
"""Work that compiling a constraint may take: about 40 ms. A step's work is limited by llguidance's defaults."""

MISSING = "constrained answers need llguidance: pip install 'chunkbench[constrained]'"


class GrammarMatcher:
    """The state of one answer: which tokens may come next. It fulfils `engine.request.Matcher`."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def allow(self, bits: NDArray[np.int32]) -> None:
        """Write into `bits` `[words]`: bit i of word w says whether token 32 w + i may come next."""
        self._state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)

    def accept(self, token: int) -> bool:
        """Go on by an allowed token. Returns whether the answer is complete and nothing may follow."""
        self._state.consume_token(token)
        return bool(self._state.is_stopped())

    def forced(self) -> list[int]:
        """The tokens that the constraint leaves no choice about, from here on, as the tokenizer would write their text.

        The last one stays open where it may merge with what follows.
        """
        return list(self._state.compute_ff_tokens())

    @property
    def error(self) -> str:
        """Why no token can come next: a limit was reached. Empty if one can."""
        return str(self._state.get_error())


class Grammars:
    """Compiles constraints for one tokenizer. Safe for several threads."""

    def __init__(self, tokenizer: str, vocabulary: int, ends: Collection[int]) -> None:
        """`tokenizer`: tokenizer.json as text; `ends`: token ids that end an answer.

        Takes about a second. Raises ModuleNotFoundError without llguidance, ConstraintRefused for a tokenizer that it
        cannot read.
        """
        import llguidance

        self._library = llguidance
        try:
            self._tokenizer = llguidance.LLTokenizer(tokenizer, n_vocab=vocabulary, eos_token=sorted(ends) or None)
        except Exception as error:  # of its own kinds
            raise ConstraintRefused(f"llguidance cannot read the model's tokenizer: {error}") from None
        self._limits = llguidance.LLParserLimits(initial_lexer_fuel=_FUEL)
        self._compiled: OrderedDict[Constraint, Any] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, constraint: Constraint) -> GrammarMatcher:
        """A new answer that follows the constraint. The first one compiles it. Raises ConstraintRefused."""
        with self._lock:
            state = self._compiled.get(constraint)
            if state is not None:
                self._compiled.move_to_end(constraint)
        if state is None:
            state = self._compile(constraint)
            with self._lock:
                self._compiled[constraint] = state
                while len(self._compiled) > MOST_COMPILED:
                    self._compiled.popitem(last=False)
        return GrammarMatcher(state.deep_copy())

    def _compile(self, constraint: Constraint) -> Any:
        library = self._library.LLMatcher
        if constraint.kind == "regex":
            grammar = library.grammar_from_regex(constraint.text)
        elif constraint.kind == "json":
            grammar = library.grammar_from_json_schema(constraint.text, overrides=_COMPACT)
        else:
            texts = " | ".join(json.dumps(text) for text in json.loads(constraint.text))
            grammar = library.grammar_from_lark(f"start: {texts}")
        state = library(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if state.is_error():
            raise ConstraintRefused(" ".join(state.get_error().split())[:_MESSAGE_CHARACTERS])
        return state
