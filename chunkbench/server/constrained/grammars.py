"""Compiles constraints for a tokenizer, and keeps the compiled constraints."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from chunkbench.malloc import bytes_in_use, give_back
from chunkbench.server.constrained.constraint import Constraint, ConstraintRefused
from chunkbench.server.constrained.matchers import (
    ForcedTokensMatcher,
    InterleavedMatcher,
    JumpMatcher,
    Matcher,
    Method,
    RetokenizingMatcher,
)
from chunkbench.server.constrained.recent import Recent
from chunkbench.server.constrained.schema import place_of_keys, prepared
from chunkbench.server.constrained.template import Gap, Part, Place, parts
from chunkbench.server.constrained.vocabulary import Vocabulary, follow_bytes, refusing

MOST_COMPILED = 128
"""Maximum number of compiled constraints that are kept. The least recently used one is dropped first."""
_MOST_BYTES = 48 << 20
"""Maximum memory of all kept constraints, in bytes. A constraint's memory is the growth of the heap while it was
compiled. Usual constraints take less than 1 MiB, `(a{400}){400}` takes 18 MiB."""
_LONG_S = 0.1
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
"""llguidance's options for JSON without optional whitespace. Where whitespace may follow, no text is forced."""
_MESSAGE_CHARACTERS = 400
_MOST_GAPS = 32
"""Maximum number of different gaps of a template."""
_FUEL = 100_000
"""Maximum work for compiling a constraint, in llguidance's units. Usual schemas need less. With a limit of
2,000,000, `(a{9000}){9000}` took 330 MiB and 3 s. The work of a step has llguidance's default limits."""

MISSING = "constrained answers need llguidance: pip install 'chunkbench[constrained]'"

Compiled = Callable[[bool], Matcher]
"""A function that makes the matcher of a new answer. Its argument means the same as `masks` in `Grammars.matcher`."""
_KINDS: dict[Method, type[Matcher]] = {
    "mask": Matcher,
    "interleaved": Matcher,  # if the constraint has no template
    "jump": JumpMatcher,
    "jump-retokenize": RetokenizingMatcher,
    "forced-tokens": ForcedTokensMatcher,
}


class Grammars:
    """Compiles constraints for one tokenizer and one method. Threads may share an object."""

    def __init__(
        self,
        tokenizer: str,
        vocabulary: int,
        ends: Collection[int],
        method: Method = "mask",
        most_compiled: int = MOST_COMPILED,
    ) -> None:
        """`tokenizer`: text of the tokenizer.json; `vocabulary`: size of the model's vocabulary; `ends`: token ids that
        end an answer.

        Takes about a second. Raises ModuleNotFoundError without llguidance, ConstraintRefused if llguidance cannot
        read the tokenizer.
        """
        self.vocabulary = Vocabulary.read(tokenizer, vocabulary, ends)
        import llguidance

        self._library = llguidance.LLMatcher
        self._limits = llguidance.LLParserLimits(initial_lexer_fuel=_FUEL)
        self._method = method
        self._compiled: Recent[Constraint, Compiled] = Recent(most_compiled, _MOST_BYTES)
        self._lock = threading.Lock()

    def known(self, constraint: Constraint, masks: bool = False) -> Matcher | None:
        """Like `matcher`, but returns None if the constraint is not compiled yet."""
        with self._lock:
            compiled = self._compiled.get(constraint)
        return None if compiled is None else compiled(masks)

    def matcher(self, constraint: Constraint, masks: bool = False) -> Matcher:
        """Make a matcher for a new answer. The constraint is compiled if it is new. With `masks`, the model chooses
        every token, whatever the method is. Raises ConstraintRefused."""
        found = self.known(constraint, masks)
        if found is not None:
            return found
        before, began = bytes_in_use(), time.monotonic()
        compiled = self._compile(constraint)
        grown = max(0, bytes_in_use() - before)  # llguidance does not report the memory of a constraint
        with self._lock:
            self._compiled.keep(constraint, compiled, grown)
        if time.monotonic() - began > _LONG_S:  # such work leaves holes of tens of MiB in the heap
            give_back()
        return compiled(masks)

    def _compile(self, constraint: Constraint) -> Compiled:
        state, kind = self._state(constraint), _KINDS[self._method]

        def by_masks(masks: bool) -> Matcher:
            return (Matcher if masks else kind)(state.deep_copy(), self.vocabulary)

        if self._method == "interleaved":
            try:
                begin, gaps = self._template(constraint)
                return lambda masks: (
                    by_masks(masks)
                    if masks
                    else InterleavedMatcher(state.deep_copy(), self.vocabulary, Place(begin, gaps))
                )
            except ConstraintRefused as error:
                logging.getLogger(__name__).info("masks alone for %.80s: %s", constraint.text, error)
        return by_masks

    def _template(self, constraint: Constraint) -> tuple[bytes, list[Gap]]:
        """The template of a constraint: the fixed text with which it begins, and the gaps after this text. Raises
        ConstraintRefused."""
        if constraint.kind == "json":
            raise ConstraintRefused("a schema is not a template")
        found = parts(_regex(constraint)) or [Part(False, "")]
        if not any(part.fixed for part in found):
            logging.getLogger(__name__).info("no text is fixed in %.80s", constraint.text)
        begin = found.pop(0).text.encode() if found[0].fixed else b""
        texts = [found[place + 1].text if place + 1 < len(found) else "" for place in range(0, len(found), 2)]
        ended = [f"(?:{gap.text}){_escaped(text[:1])}" for gap, text in zip(found[::2], texts, strict=True)]
        if len({*ended}) > _MOST_GAPS:
            raise ConstraintRefused(f"its template has {len({*ended})} different gaps")
        states = {expression: follow_bytes(expression, self._limits) for expression in dict.fromkeys(ended)}
        return begin, [
            Gap(states[expression], text[1:].encode(), not text) for expression, text in zip(ended, texts, strict=True)
        ]

    def _state(self, constraint: Constraint) -> Any:
        """Compile a constraint to an LLMatcher, which each answer copies. Raises ConstraintRefused."""
        schema = prepared(json.loads(constraint.text)) if constraint.kind == "json" else None
        with refusing("llguidance cannot read it"):  # such as JSON that is too deep
            if schema is None:
                grammar = self._library.grammar_from_regex(_regex(constraint))
            else:
                grammar = self._library.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)
            state = self._library(self.vocabulary.library, grammar, log_level=0, limits=self._limits)
            first = state.deep_copy()
            if not state.is_error():
                # All copies share the memory that this call takes, so that `matcher` can measure it.
                begins = Matcher(first, self.vocabulary).begins
        if not first.is_error():
            if not begins:
                raise ConstraintRefused("the model has no token with which an answer can begin")
            return state
        error = first.get_error().partition("<state>")[0]
        raise ConstraintRefused(" ".join((error + place_of_keys(error, schema)).split())[:_MESSAGE_CHARACTERS])


def _regex(constraint: Constraint) -> str:
    """The regular expression of a constraint; a choice becomes alternatives."""
    if constraint.kind == "regex":
        return constraint.text
    return "|".join(map(_escaped, json.loads(constraint.text)))


def _escaped(text: str) -> str:
    """An expression that matches only this text, in all dialects."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", text)
