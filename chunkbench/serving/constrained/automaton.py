"""The automaton of a regular expression over bytes, compressed: runs of edges without a choice are one edge."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
from numpy.typing import NDArray

from chunkbench.serving.constrained import compiler
from chunkbench.serving.constrained.constraint import ConstraintRefused

MOST_STATES = 1 << 15
NOWHERE = 0
"""The state of a text that can no longer match."""
BEGIN = 1
"""The state of an empty text."""


class Automaton:
    """Says for each state which bytes may come next, and which must.

    An edge is singular if its state has no other one; a state in which the text may end counts the end as an edge.
    Consecutive edges, all but the first singular, are one compressed edge (SGLang's paper, section 4 and appendix B).
    """

    _numbers = itertools.count()

    def __init__(self, table: NDArray[np.int32], ends: NDArray[np.bool_]) -> None:
        """table `[state, byte]`: the next state. ends `[state]`: whether the text may end."""
        self.number = next(self._numbers)
        """No other automaton of this process has it."""
        self._table = table
        self._ends = ends
        self._single = ((table != NOWHERE).sum(1) == 1) & ~ends
        self._complete = ~(table != NOWHERE).any(1)
        self._only = (table != NOWHERE).argmax(1)
        self._jumps: dict[int, bytes] = {}
        self.longest: dict[int, int] = {}
        """State -> bytes of the longest token that may come next, where somebody asked."""

    def walk(self, state: int, text: bytes) -> int:
        """The state after a text."""
        for byte in text:
            state = int(self._table[state, byte])
        return state

    def ends(self, state: int) -> bool:
        """Whether the text may end here."""
        return bool(self._ends[state])

    def complete(self, state: int) -> bool:
        """Whether nothing may follow."""
        return bool(self._complete[state])

    def jump(self, state: int) -> bytes:
        """The bytes that must follow, as far as there is no choice: whole characters, most often none."""
        found = self._jumps.get(state)
        if found is None:
            found = self._jumps[state] = self._compressed(state)
        return found

    def _compressed(self, state: int) -> bytes:
        found = bytearray()
        while self._single[state]:
            found.append(int(self._only[state]))
            state = int(self._table[state, found[-1]])
        if found and 0x80 <= found[0] < 0xC0:  # the text so far ends inside a character
            return b""
        return found.decode(errors="ignore").encode()  # the last character may have begun only


def compile_regex(regex: str, limit_s: float = 10.0) -> Automaton:
    """Takes some 60 ms, most of it the start of a process, and at most `limit_s`. Raises ConstraintRefused,
    ModuleNotFoundError without outlines-core."""
    import outlines_core  # noqa: F401  # the process needs it

    command = [sys.executable, "-I", str(compiler.__file__)]
    try:
        done = subprocess.run(command, input=regex.encode(), capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise ConstraintRefused(f"its automaton takes more than {limit_s:g} s") from None
    if done.returncode < 0 or b"MemoryError" in done.stderr:
        raise ConstraintRefused(f"its automaton takes more than {compiler.MEMORY_BYTES >> 30} GiB")
    if done.returncode:
        raise ConstraintRefused(" ".join(done.stderr.decode(errors="replace").split())[-400:])
    first, edges = np.frombuffer(done.stdout, np.int64)[0], np.frombuffer(done.stdout, np.int64)[1:].reshape(-1, 3)
    return _numbered(int(first), edges)


def _numbered(first: int, edges: NDArray[np.int64]) -> Automaton:
    """The automaton with states 1, 2, ... `edges` [edge, (state, byte, next)]."""
    others = np.setdiff1d(edges[:, [0, 2]], [first])
    if len(others) >= MOST_STATES:
        raise ConstraintRefused(f"its automaton has {len(others) + 1} states: this server takes at most {MOST_STATES}")
    names = np.concatenate([[first], others])
    order = np.argsort(names)
    states, nexts = (BEGIN + order[np.searchsorted(names, edges[:, column], sorter=order)] for column in (0, 2))
    ending = edges[:, 1] == compiler.END
    table = np.zeros((BEGIN + len(names), 256), np.int32)
    table[states[~ending], edges[~ending, 1]] = nexts[~ending]
    # A state behind which nothing but the mark comes has no way on.
    alone, marked = np.ones(len(table), np.bool_), np.arange(len(table))
    for byte in compiler.MARK.encode():
        marked = table[marked, byte]
        alone &= (table[marked] != NOWHERE).sum(1) <= 1
    ends = np.isin(marked, states[ending])
    table[ends & alone, compiler.MARK.encode()[0]] = NOWHERE
    if not ends.any():
        raise ConstraintRefused("no text matches it; leave ^ and $ out, a match is always of the whole text")
    return Automaton(table, ends)
