"""A program: a regular expression comes in, the edges of its automaton over bytes go out.

It is a process of its own, because few characters can ask for more states than the machine has memory for, and nothing
ends a call into the library.
"""

from __future__ import annotations

import resource
import sys
from array import array

MEMORY_BYTES = 2 << 30
MARK = "\U0010ffff"
"""Stands behind a text. It is no character, so no text has it."""
END = 256
"""The byte of an edge that says: text and mark end here."""


def edges(regex: str) -> array[int]:
    """The first state; then state, byte and next state of each edge. Raises ValueError.

    The library's index over single bytes lacks edges that lead out of a state in which the text may end (0.2.14). With
    the mark behind it no such state is there.
    """
    from outlines_core import Index, Vocabulary

    index = Index(f"(?:{regex}){MARK}", Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)}))
    found = array("q", [index.get_initial_state()])
    for state, nexts in index.get_transitions().items():
        for byte, following in nexts.items():
            found.extend((state, byte, following))
    return found


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = edges(sys.stdin.buffer.read().decode())
    except ValueError as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(found.tobytes())


if __name__ == "__main__":
    main()
