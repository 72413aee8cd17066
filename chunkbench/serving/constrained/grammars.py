"""Constraints compiled for a tokenizer, each once."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from chunkbench.malloc import bytes_in_use, give_back
from chunkbench.serving.constrained.automaton import compile_regex
from chunkbench.serving.constrained.constraint import Constraint, ConstraintRefused
from chunkbench.serving.constrained.matchers import (
    ForcedTokensMatcher,
    Gap,
    GrammarMatcher,
    InterleavedMatcher,
    JumpMatcher,
    Masks,
    Matcher,
    Method,
    RegexMatcher,
    RetokenizingMatcher,
    Vocabulary,
)
from chunkbench.serving.constrained.recent import Recent
from chunkbench.serving.constrained.template import Part, parts

MOST_COMPILED = 128
"""Constraints that are kept; the one that was used longest ago goes first."""
_MOST_BYTES = 48 << 20
"""Memory that the kept ones may have taken when they were compiled, first mask included. Usual ones take less than
1 MiB, `(a{400}){400}` takes 18 MiB."""
_LONG_S = 0.1
_MOST_MASKS = 8192
"""Masks that are kept, of 6 KB each for 49,152 tokens."""
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
"""JSON without optional whitespace: else nothing of an answer is forced."""
_MESSAGE_CHARACTERS = 400
_LIMIT_S, _GAP_LIMIT_S = 10.0, 1.0
"""Time to compile an automaton; of a gap, or where masks do without."""
_MOST_GAPS = 32
"""Different ones in a template."""
_FUEL = 100_000
"""Work that preparing a constraint may take, in llguidance's units. Twenty times as much let `(a{9000}){9000}` take
330 MiB and 3 s; usual schemas need less than this. A step's work is limited by llguidance's defaults."""

MISSING = "constrained answers need llguidance and outlines-core: pip install 'chunkbench[constrained]'"

M = TypeVar("M", bound=RegexMatcher)
Compiled = Callable[[], Matcher]
"""Makes the state of a new answer."""


class Grammars:
    """Compiles constraints for one tokenizer and one method. Safe for several threads."""

    def __init__(
        self,
        tokenizer: str,
        vocabulary: int,
        ends: Collection[int],
        method: Method = "mask",
        most_compiled: int = MOST_COMPILED,
    ) -> None:
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
        self._method = method
        self._vocabulary = Vocabulary.of(self._tokenizer)
        self._masks = Masks(_MOST_MASKS)
        self._compiled: Recent[Constraint, Compiled] = Recent(most_compiled, _MOST_BYTES)
        self._lock = threading.Lock()

    def known(self, constraint: Constraint) -> Matcher | None:
        """A new answer that follows a constraint which was compiled before; else None."""
        with self._lock:
            compiled = self._compiled.get(constraint)
        return None if compiled is None else compiled()

    def matcher(self, constraint: Constraint) -> Matcher:
        """A new answer that follows the constraint. The first one compiles it. Raises ConstraintRefused."""
        found = self.known(constraint)
        if found is not None:
            return found
        before, began = bytes_in_use(), time.monotonic()
        compiled = self._compile(constraint)
        grown = max(0, bytes_in_use() - before)  # llguidance does not say what a constraint takes
        with self._lock:
            self._compiled.keep(constraint, compiled, grown)
        if time.monotonic() - began > _LONG_S:  # such work leaves holes of tens of MiB in the heap
            give_back()
        return compiled()

    def _compile(self, constraint: Constraint) -> Compiled:
        state = self._state(constraint)
        if self._method == "forced-tokens":
            return lambda: ForcedTokensMatcher(state.deep_copy())
        if self._method != "mask" or constraint.kind != "json":  # a schema says more than its regular expression
            try:
                return self._of_regex(_regex(constraint))
            except ConstraintRefused as error:
                logging.getLogger(__name__).info("masks alone for %.80s: %s", constraint.text, error)
        return lambda: GrammarMatcher(state.deep_copy())

    def _of_regex(self, regex: str) -> Compiled:
        if self._method == "interleaved":
            return self._template(regex)
        kind = {"mask": RegexMatcher, "jump": JumpMatcher, "jump-retokenize": RetokenizingMatcher}[self._method]
        return self._followed(regex, kind)

    def _followed(self, regex: str, kind: type[M]) -> Callable[[], M]:
        """Follows an expression by its automaton. Raises ConstraintRefused."""
        state = self._state(Constraint.of_regex(regex))
        jumps = self._method in ("jump", "jump-retokenize")
        automaton = compile_regex(regex, _LIMIT_S if jumps else _GAP_LIMIT_S)
        return lambda: kind(state.deep_copy(), self._vocabulary, automaton, self._masks)

    def _template(self, regex: str) -> Compiled:
        found = parts(regex) or [Part(False, "")]
        if not any(part.fixed for part in found):
            logging.getLogger(__name__).info("no text is fixed in %.80s: interleaved is the same as mask", regex)
        begin = self._vocabulary.of_text(found.pop(0).text.encode() if found[0].fixed else b"")
        texts = [found[place + 1].text if place + 1 < len(found) else "" for place in range(0, len(found), 2)]
        ended = [f"(?:{gap.text}){re.escape(text[:1])}" for gap, text in zip(found[::2], texts, strict=True)]
        if len({*ended}) > _MOST_GAPS:
            raise ConstraintRefused(f"its template has {len({*ended})} different gaps")
        followed = {expression: self._followed(expression, RegexMatcher) for expression in dict.fromkeys(ended)}
        gaps = [
            Gap(followed[expression], self._vocabulary.of_text(text[1:].encode()), not text)
            for expression, text in zip(ended, texts, strict=True)
        ]
        return lambda: InterleavedMatcher(begin, gaps)

    def _state(self, constraint: Constraint) -> Any:
        """An LLMatcher to be copied. Raises ConstraintRefused."""
        library = self._library.LLMatcher
        try:
            if constraint.kind == "regex":
                grammar = library.grammar_from_regex(constraint.text)
            elif constraint.kind == "json":
                grammar = library.grammar_from_json_schema(constraint.text, overrides=_COMPACT)
            else:
                texts = " | ".join(json.dumps(text) for text in json.loads(constraint.text))
                grammar = library.grammar_from_lark(f"start: {texts}")
        except ValueError as error:  # JSON that is too deep for it
            raise ConstraintRefused(str(error)[:_MESSAGE_CHARACTERS]) from None
        state = library(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if state.is_error():
            raise ConstraintRefused(" ".join(state.get_error().split())[:_MESSAGE_CHARACTERS])
        state.deep_copy().compute_bitmask()  # all copies share what this takes, so that `matcher` sees it
        return state


def _regex(constraint: Constraint) -> str:
    """The regular expression of a constraint. Raises ConstraintRefused, ModuleNotFoundError without outlines-core."""
    if constraint.kind == "regex":  # a match is always of the whole text
        return re.sub(r"^\^|(?<!\\)\$$", "", constraint.text)
    if constraint.kind == "choice":
        return "|".join(map(re.escape, json.loads(constraint.text)))
    from outlines_core.json_schema import build_regex_from_schema

    try:
        regex: str = build_regex_from_schema(constraint.text, whitespace_pattern="")
    except (TypeError, ValueError) as error:
        raise ConstraintRefused(f"{error}"[:_MESSAGE_CHARACTERS]) from None
    return regex
