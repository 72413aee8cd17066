"""Parses YAML text into a tree of plain values that knows the place of each key and value.

It accepts only YAML that a person, YAML 1.1 and YAML 1.2 read alike: no tags, anchors, aliases (so none can expand) or
merge keys, no duplicate keys, and no plain scalar that readers of YAML interpret differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml import events
from yaml.reader import Reader

from chunkbench.experiment.errors import Mark, Problem

MAX_BYTES = 1 << 18
MAX_DEPTH = 64
_MAX_DIGITS = 18

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_UNDERSCORED = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0b[01_]+|[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_YES_NO = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}
_HINTS = {
    "mapping values are not allowed here": "a second colon on one line; put text that holds a colon in quotes, "
    "or check the indentation",
    "could not find expected ':'": "a key without its colon, or a line that is not indented like its neighbours",
    "expected <block end>, but found": "the indentation does not match that of the lines above",
    "found unexpected end of stream": "a quote is opened and never closed",
}


class Misread:
    """Replaces a refused scalar, so that the rest of the file can still be checked."""

    def __repr__(self) -> str:
        return "a value that cannot be read"


MISREAD = Misread()


@dataclass(frozen=True)
class Node:
    """A value and its place: a scalar, a list of nodes, or a mapping from key to (place of the key, node)."""

    at: Mark
    value: Any

    def plain(self) -> Any:
        """The value without places; refused scalars stay as `MISREAD`."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, (_, node) in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def child(self, step: str | int) -> Node | None:
        """The node under a key or index, if there is one."""
        if isinstance(self.value, dict) and step in self.value:
            child: Node = self.value[step][1]
            return child
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            item: Node = self.value[step]
            return item
        return None

    def mark(self, path: tuple[str | int, ...], *, key: bool = False) -> Mark:
        """Place of the value at a path, or of its key; if the path does not exist, of its closest existing parent."""
        node = self
        for depth, step in enumerate(path):
            if key and depth == len(path) - 1 and isinstance(node.value, dict) and step in node.value:
                key_mark: Mark = node.value[step][0]
                return key_mark
            child = node.child(step)
            if child is None:
                break
            node = child
        return node.at


def read(text: str, path: str, *, line: int | None = None) -> tuple[Node | None, list[Problem]]:
    """The tree of one YAML document (None if there is none) and its problems.

    `line` replaces all positions (0 for a command-line option). Never raises, whatever the text.
    """
    reader = _TreeReader(path, fixed=line)
    unprintable = Reader.NON_PRINTABLE.search(text)
    if unprintable is not None:
        before = text[: unprintable.start()]
        mark = reader.place(before.count("\n"), unprintable.start() - before.rfind("\n") - 1)
        reader.problem(mark, f"the character {unprintable[0]!r} is not allowed in YAML")
        return None, reader.problems
    node: Node | None = None
    try:
        node = reader.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        reader.problem(reader.place_of(error.problem_mark or error.context_mark), _explain(error))
    except _TooDeep as error:
        reader.problem(error.mark, f"nested more than {MAX_DEPTH} levels deep")
    except (ValueError, OverflowError) as error:
        # The scanner passes a %YAML version or an escape such as "\UFFFFFFFF" on to int() and chr() unchecked.
        reader.problem(reader.place(0, 0), f"cannot read the YAML: {error}")
    return node, reader.problems


class _TooDeep(Exception):
    def __init__(self, mark: Mark) -> None:
        super().__init__()
        self.mark = mark


class _TreeReader:
    """Builds nodes from parser events. It records a problem for each refused part, and continues wherever it can."""

    def __init__(self, path: str, fixed: int | None) -> None:
        self.path = path
        self.fixed = fixed
        self.problems: list[Problem] = []

    def place(self, line: int, column: int) -> Mark:
        """A mark from pyyaml's zero-based line and column."""
        return Mark(self.path, line + 1, column + 1) if self.fixed is None else Mark(self.path, self.fixed)

    def place_of(self, mark: Any) -> Mark:
        """A mark from pyyaml's mark, or the start of the file if pyyaml gives none."""
        return self.place(mark.line, mark.column) if mark is not None else self.place(0, 0)

    def problem(self, mark: Mark, message: str, key: str = "") -> None:
        self.problems.append(Problem(mark.path, mark.line, mark.column, message, key))

    def document(self, stream: Iterator[events.Event]) -> Node | None:
        root: Node | None = None
        started = False
        for event in stream:
            if isinstance(event, events.DocumentStartEvent):
                if started:
                    self.problem(
                        self.place_of(event.start_mark), "a second document starts here; a file holds one experiment"
                    )
                    return root
                started = True
                root = self.node(next(stream), stream, 0, "")
        return root

    def node(self, event: events.Event, stream: Iterator[events.Event], depth: int, key: str) -> Node:
        """The node that begins with an event; `key` is the key that the node belongs to."""
        mark = self.place_of(event.start_mark)
        if depth > MAX_DEPTH:
            raise _TooDeep(mark)
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if isinstance(event, events.AliasEvent):
            self.problem(mark, f"aliases (*{anchor}) are not used in experiments; write the value out", key)
            return Node(mark, MISREAD)
        if anchor is not None:
            message = f"anchors (&{anchor}) are not used in experiments; common axes go under defaults"
            self.problem(mark, message, key)
        if tag is not None:
            self.problem(mark, f"tags ({tag}) are not used in experiments; write the plain value", key)
        if isinstance(event, events.SequenceStartEvent):
            return Node(mark, list(self.items(stream, depth, key)))
        if isinstance(event, events.MappingStartEvent):
            return Node(mark, self.entries(stream, depth))
        assert isinstance(event, events.ScalarEvent)
        if event.style is not None:
            return Node(mark, event.value)
        try:
            return Node(mark, resolve(event.value))
        except ValueError as error:
            self.problem(mark, str(error), key)
            return Node(mark, MISREAD)

    def items(self, stream: Iterator[events.Event], depth: int, key: str) -> Iterator[Node]:
        for event in stream:
            if isinstance(event, events.SequenceEndEvent):
                return
            yield self.node(event, stream, depth + 1, key)

    def entries(self, stream: Iterator[events.Event], depth: int) -> dict[str, tuple[Mark, Node]]:
        mapping: dict[str, tuple[Mark, Node]] = {}
        for event in stream:
            if isinstance(event, events.MappingEndEvent):
                break
            before = len(self.problems)
            key = self.node(event, stream, depth + 1, "")
            name = key.value if isinstance(key.value, str) else ""
            value = self.node(next(stream), stream, depth + 1, name)
            if name == "<<":
                self.problem(key.at, "merge keys are not used in experiments; common axes go under defaults", name)
            elif not isinstance(key.value, str):
                if len(self.problems) == before:
                    self.problem(key.at, "a key must be a name")
            elif key.value in mapping:
                first = mapping[name][0]
                self.problem(
                    key.at, f"written twice{f', first in line {first.line}' if first.line else ''}; keep one", name
                )
            else:
                mapping[name] = (key.at, value)
        return mapping


def resolve(text: str) -> bool | int | float | str | None:
    """Value of a plain (unquoted) scalar. Raises `ValueError` if YAML readers disagree about it."""
    if text.lower() in _CONSTANTS and text in (text.lower(), text.upper(), text.capitalize()):
        return _CONSTANTS[text.lower()]
    if text.lower() in _YES_NO:
        meant = _YES_NO[text.lower()]
        readings = f"is read as {meant} by some YAML readers and as text by others"
        raise ValueError(f"{text} {readings}; write {meant}, or '{text}' in quotes")
    if re.fullmatch(r"[-+]?0[0-9]+", text):
        decimal = text.lstrip("+-").lstrip("0") or "0"
        raise ValueError(f"{text} is read as octal by some YAML readers and as decimal by others; write {decimal}")
    if "_" in text and _UNDERSCORED.fullmatch(text):
        raise ValueError(f"{text} is a number to some YAML readers and text to others; write {text.replace('_', '')}")
    if re.fullmatch(r"[-+]?0b[01]+", text):
        raise ValueError(f"{text} is a binary number to some YAML readers and text to others; write it in decimal")
    if re.fullmatch(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?", text):
        readings = "is read in base 60 by some YAML readers"
        raise ValueError(f"{text} {readings}; write a duration like 12m30s, or '{text}' in quotes")
    if re.fullmatch(r"[-+]?\.(inf|nan)", text.lower()):
        raise ValueError(f"{text} is not a finite number")
    if _INT.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits is too large")
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"{text} is too large")
        return value
    return text


def _explain(error: yaml.MarkedYAMLError) -> str:
    message = error.problem or error.context or "not YAML"
    if "'\\t'" in message:
        return "a tab; indent with spaces"
    for start, hint in _HINTS.items():
        if message.startswith(start):
            return f"cannot read the YAML: {hint}"
    began = f" ({error.context} that begins in line {error.context_mark.line + 1})" if error.context_mark else ""
    return f"cannot read the YAML: {message}{began}"
