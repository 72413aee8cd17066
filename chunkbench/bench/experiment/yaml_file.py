"""Reads YAML text into plain values, and records the line and column of each key and value.

The reader refuses YAML that people, YAML 1.1 and YAML 1.2 may read differently: tags, anchors, aliases, merge keys,
duplicate keys, and ambiguous plain scalars.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml import events, nodes
from yaml.reader import Reader

from chunkbench.bench.experiment.findings import MISREAD, Mark, Path, Problem
from chunkbench.bench.experiment.tree import MAX_LEVELS

MAX_BYTES = 1 << 18
MAX_DEPTH = 2 * MAX_LEVELS + 16  # a level of a tree is two of YAML
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
_REFUSED = "refused"
"""Tag of the node that replaces an alias, because aliases are refused."""
_KEY = -1
"""Last step of the path of a key; the path of a value ends with the name of its key. The value of a refused key also
gets this step."""


@dataclass
class YamlDocument:
    """A parsed file: its values, the positions of its values and keys, and its problems."""

    path: str
    fixed_line: int | None = None
    """If not None, the line number of every position. A command-line option has line 0."""
    value: Any = None
    """The values; None if the file is empty. `MISREAD` replaces refused scalars."""
    values_at: dict[Path, Mark] = field(default_factory=dict)
    keys_at: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def mark(self, path: Path, *, key: bool = False) -> Mark:
        """Position of the value at `path`, or of its key. If the path does not exist, position of the closest existing
        parent."""
        if key and path in self.keys_at:
            return self.keys_at[path]
        while path not in self.values_at and path:
            path = path[:-1]
        return self.values_at.get(path, self.place(0, 0))

    def place(self, line: int, column: int) -> Mark:
        """Convert a line and column of pyyaml, which count from zero."""
        return Mark(self.path, line + 1, column + 1) if self.fixed_line is None else Mark(self.path, self.fixed_line)

    def place_of(self, mark: Any) -> Mark:
        """Convert a mark of pyyaml. Without a mark, return the start of the file."""
        return self.place(mark.line, mark.column) if mark is not None else self.place(0, 0)

    def problem(self, mark: Mark, message: str, key: str = "") -> None:
        self.problems.append(Problem(mark.path, mark.line, mark.column, message, key))

    def put(self, path: Path, other: YamlDocument) -> None:
        """Insert the value of another document at a path below a mapping, and keep the value's source positions."""
        *above, last = path
        parent = self.value
        for step in above:
            parent = parent[step]
        parent[last] = other.value
        self.values_at |= {(*path, *below): mark for below, mark in other.values_at.items()}
        self.keys_at |= {path: other.values_at[()]} | {(*path, *b): mark for b, mark in other.keys_at.items()}


class _TooDeep(Exception):
    def __init__(self, mark: Mark) -> None:
        self.mark = mark


class _Loader(yaml.SafeLoader):
    """Composes nodes, and refuses what readers of YAML do not read alike."""

    def __init__(self, text: str, document: YamlDocument) -> None:
        super().__init__(text)
        self._document = document
        self._keys: list[str] = []
        """For each open node the key that it belongs to."""

    def compose_node(self, parent: nodes.Node | None, index: Any) -> nodes.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark = self._document.place_of(event.start_mark)
        if len(self._keys) > MAX_DEPTH:
            raise _TooDeep(mark)
        inside = self._keys[-1] if self._keys and isinstance(index, int) else ""
        key = index.value if isinstance(index, nodes.ScalarNode) else inside
        if isinstance(event, events.AliasEvent):
            message = f"aliases (*{event.anchor}) are not used in experiments; write the value out"
            self._document.problem(mark, message, key)
            self.get_event()  # type: ignore[no-untyped-call]
            return nodes.ScalarNode(_REFUSED, "", event.start_mark, event.end_mark)  # type: ignore[arg-type]
        if event.anchor is not None:
            message = f"anchors (&{event.anchor}) are not used in experiments; common axes go under defaults"
            self._document.problem(mark, message, key)
        if event.tag is not None:
            message = f"tags ({event.tag}) are not used in experiments; write the plain value"
            self._document.problem(mark, message, key)
        event.anchor = event.tag = None
        self._keys.append(key)
        node = super().compose_node(parent, index)
        self._keys.pop()
        return node


def read(text: str, path: str, *, line: int | None = None) -> YamlDocument:
    """Read one YAML document. Never raises: the result lists the problems.

    If `line` is given, all positions get this line, such as 0 for a command-line option.
    """
    document = YamlDocument(path, line)
    unprintable = Reader.NON_PRINTABLE.search(text)
    if unprintable is not None:
        before = text[: unprintable.start()]
        mark = document.place(before.count("\n"), unprintable.start() - before.rfind("\n") - 1)
        document.problem(mark, f"the character {unprintable[0]!r} is not allowed in YAML")
        return document
    try:
        root = _compose(text, document)
    except yaml.MarkedYAMLError as error:
        document.problem(document.place_of(error.problem_mark or error.context_mark), _explain(error))
    except _TooDeep as error:
        document.problem(error.mark, f"nested more than {MAX_DEPTH} levels deep")
    except (ValueError, OverflowError) as error:
        # The scanner passes a %YAML version or an escape such as "\UFFFFFFFF" on to int() and chr() unchecked.
        document.problem(document.place(0, 0), f"cannot read the YAML: {error}")
    else:
        if root is not None:
            document.value = _plain(root, (), "", document)
    return document


def _compose(text: str, document: YamlDocument) -> nodes.Node | None:
    """The first document's node; None if there is none. A second document is a problem."""
    loader = _Loader(text, document)
    try:
        loader.get_event()  # type: ignore[no-untyped-call]  # the start of the stream
        if loader.check_event(events.StreamEndEvent):
            return None
        root = loader.compose_document()
        if not loader.check_event(events.StreamEndEvent):
            second: Any = loader.peek_event()  # type: ignore[no-untyped-call]
            mark = document.place_of(second.start_mark)
            document.problem(mark, "a second document starts here; a file holds one experiment")
        return root
    finally:
        loader.dispose()


def _plain(node: Any, path: Path, key: str, document: YamlDocument) -> Any:
    """The value of a node. Records the places of all values and keys in the node."""
    mark = document.values_at[path] = document.place_of(node.start_mark)
    if isinstance(node, nodes.SequenceNode):
        return [_plain(item, (*path, index), key, document) for index, item in enumerate(node.value)]
    if isinstance(node, nodes.MappingNode):
        return _mapping(node, path, document)
    if node.tag == _REFUSED:
        return MISREAD
    if node.style is not None:
        return node.value
    try:
        return resolve_scalar(node.value)
    except ValueError as error:
        document.problem(mark, str(error), key)
        return MISREAD


def _mapping(node: nodes.MappingNode, path: Path, document: YamlDocument) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        at = document.place_of(key_node.start_mark)
        problems = len(document.problems)
        key = _plain(key_node, (*path, _KEY), "", document)
        name = key if isinstance(key, str) else ""
        if name == "<<":
            document.problem(at, "merge keys are not used in experiments; common axes go under defaults", name)
        elif not isinstance(key, str):
            if len(document.problems) == problems and key is not MISREAD:
                document.problem(at, "a key must be a name")
        elif name in mapping:
            first = document.keys_at[*path, name]
            written = f"written twice{f', first in line {first.line}' if first.line else ''}; keep one"
            document.problem(at, written, name)
        else:
            document.keys_at[*path, name] = at
            mapping[name] = _plain(value_node, (*path, name), name, document)
            continue
        _plain(value_node, (*path, _KEY), name, document)  # the value may have problems, too
    return mapping


def resolve_scalar(text: str) -> bool | int | float | str | None:
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
