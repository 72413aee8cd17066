"""Divides a regular expression into fixed texts and the gaps between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

_ESCAPE = r"\\(?:[pP](?:\{[^}]*\}|.)|[xuU](?:\{[^}]*\}|[0-9A-Fa-f]+)|.)"
_CLASS = rf"\[\^?\]?(?:\[:\^?\w+:\]|{_ESCAPE}|[^\]\\])*\]"
_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})[?+]?")
_ATOM = re.compile(rf"{_ESCAPE}|{_CLASS}|.", re.DOTALL)
_SPECIAL = set(".^$[(")


class Part(NamedTuple):
    fixed: bool
    """True for a fixed text, False for a gap."""
    text: str
    """The fixed text, or the gap's regular expression."""


def parts(regex: str) -> list[Part]:
    """Divide an expression into its parts, in order. The result is a single gap if the expression has alternatives,
    or flags that may change its letters."""
    atoms, place = [], 0
    while place < len(regex):
        begin = place
        place = _end_of_atom(regex, place)
        atom = regex[begin:place]
        if atom == "|" or re.match(r"\(\?[a-zA-Z-]+\)", atom):
            return [Part(False, regex)]
        quantifier = _QUANTIFIER.match(regex, place)
        if quantifier:
            place = quantifier.end()
        letter = atom[1:] if atom[0] == "\\" and len(atom) == 2 and not atom[1].isalnum() else atom
        fixed = not quantifier and len(letter) == 1 and (letter != atom or letter not in _SPECIAL)
        atoms.append(Part(fixed, letter if fixed else regex[begin:place]))
    return [
        Part(fixed, "".join(part.text for part in run)) for fixed, run in groupby(atoms, key=lambda part: part.fixed)
    ]


def _end_of_atom(regex: str, place: int) -> int:
    """The end of the atom (an escape, a class, a group, or one character) that begins at `place`."""
    depth = 0
    while True:
        atom = _ATOM.match(regex, place)
        assert atom is not None  # the expression matches any character
        depth += {"(": 1, ")": -1}.get(atom.group(), 0)
        place = atom.end()
        if depth <= 0 or place == len(regex):
            return place


class Gap(NamedTuple):
    """A gap, and the fixed text that follows it."""

    state: Any
    """An LLMatcher over bytes, which each answer copies. It matches the gap and the first character of `text`."""
    text: bytes
    """The fixed text after the gap, without its first character."""
    last: bool
    """True if the gap is the end of the template, with no fixed text after it."""


class Place:
    """The position of an answer in a template. A gap ends at the first character where the gap may end and the next
    fixed text may begin."""

    def __init__(self, begin: bytes, gaps: Sequence[Gap]) -> None:
        self.rest = begin
        """The rest of the current fixed text; empty inside a gap. At first: the fixed text before the first gap."""
        self._gaps = list(gaps)
        self._begin_gap()

    def _begin_gap(self) -> None:
        self._gap = self._gaps[0].state.deep_copy() if self._gaps else None

    def walk(self, text: bytes) -> None:
        """Move forward by a text. If the text does not fit the template, the rest of the answer has no fixed text."""
        for byte in text:
            if self.rest:
                fixed, self.rest = self.rest[0], self.rest[1:]
                if byte != fixed:
                    self.rest, self._gaps, self._gap = b"", [], None
            elif self._gap is not None:
                self._gap.consume_token(byte)
                if not self._gaps[0].last and self._gap.is_accepting():
                    self.rest = self._gaps.pop(0).text
                    self._begin_gap()
