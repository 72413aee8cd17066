"""Reads the axis `tree`: nested lists, the levels of a balanced forest as text, or a file with nested lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path as FilePath
from typing import Any

from chunkbench.bench.experiment import yaml_file
from chunkbench.bench.experiment.findings import Finding, Findings, Path, show
from chunkbench.bench.experiment.tree import MAX_LEVELS, Forest, leaves, nodes_in, sequences_in, shares
from chunkbench.bench.experiment.values import MAX_SEQUENCES, MAX_TOKENS, count_reader, integer_schema, read_name
from chunkbench.text_file import TextError, from_json, read_text

MAX_NODES = 1 << 16
_MAX_BYTES = 1 << 22
"""Largest size of a JSON file in bytes. YAML files are slower to read, so their limit is smaller: the limit of
experiments."""
_YAML = (".yaml", ".yml")
_FORM = (
    "a tree is a list of [tokens, children]; children is a number of sequences, a list of their private tokens, or"
    " another such list"
)
_LEVEL = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")
_MOST_NAMED = 5
"""Largest number of mistakes of a file that a message lists."""
_DEEPEST_PLACE = 12

_read_tokens = count_reader(0, MAX_TOKENS)
_read_sequences = count_reader(1, MAX_SEQUENCES)


def read_forest(raw: object) -> Forest:
    """Read a forest of prompts. Raises `Findings`.

    `raw` is a list of nodes `[tokens, children]`, a text of levels such as `1x8 4x256 256x32`, or the path of a file of
    nodes.
    """
    if not isinstance(raw, str):
        return _of_lists(raw)
    text = read_name(raw)
    if is_tree_file(text):
        return _of_file(text)
    words = text.split()
    if all(_LEVEL.fullmatch(word) for word in words):
        return _checked(_of_levels(words))
    message = "write levels like 1x8 4x256 256x32, the path of a .json or .yaml file, or a list of [tokens, children]"
    raise Findings(Finding((), f"{show(raw)} is no tree; {message}"))


def is_tree_file(raw: object) -> bool:
    """Whether a value is the name of a file that has a tree."""
    return isinstance(raw, str) and FilePath(raw).suffix in (".json", *_YAML)


def _of_lists(raw: object) -> Forest:
    return _checked(_nodes(raw, 1))


def _nodes(raw: object, level: int) -> Forest:
    if level > MAX_LEVELS:
        raise Findings(Finding((), f"nested more than {MAX_LEVELS} levels deep"))
    if not isinstance(raw, list | tuple):
        raise Findings(Finding((), f"must be a list, not {show(raw)}; {_FORM}"))
    if not raw:
        raise Findings(Finding((), f"is an empty list; {_FORM}"))
    nodes: list[Any] = []
    findings: list[Finding] = []
    for index, node in enumerate(raw):
        if not isinstance(node, list | tuple) or len(node) != 2:
            alone = "; a tree as text is alone in its list, or beside other texts" if isinstance(node, str) else ""
            findings.append(Finding((index,), f"must be a pair [tokens, children]; {_FORM}{alone}"))
            continue
        parsed: list[Any] = []
        readers: tuple[Callable[[object], object], ...] = (_read_tokens, partial(_children, level=level))
        for place, read in enumerate(readers):
            try:
                parsed.append(read(node[place]))
            except Findings as error:
                findings += [finding.below(index, place) for finding in error.findings]
        nodes.append(tuple(parsed))
    if findings:
        raise Findings(*findings)
    return tuple(nodes)


def _children(raw: object, level: int) -> int | tuple[int, ...] | Forest:
    if not isinstance(raw, list | tuple):
        return _read_sequences(raw)
    if not raw or any(isinstance(item, list | tuple) for item in raw):
        return _nodes(raw, level + 1)
    private: list[int] = []
    findings: list[Finding] = []
    for index, item in enumerate(raw):
        try:
            private.append(_read_tokens(item))
        except Findings as error:
            findings += [finding.below(index) for finding in error.findings]
    if findings:
        raise Findings(*findings)
    return tuple(private)


def _checked(forest: Forest) -> Forest:
    """Returns the forest if it can be measured; otherwise raises `Findings`."""
    findings = list(_conflicts(forest))
    if findings:
        raise Findings(*findings)
    return forest


def _conflicts(forest: Forest) -> Iterator[Finding]:
    nodes, sequences = nodes_in(forest), sequences_in(forest)
    if nodes > MAX_NODES:
        yield Finding((), f"holds {nodes} nodes; more than {MAX_NODES} are refused")
    if sequences > MAX_SEQUENCES:
        yield Finding((), f"holds {sequences} sequences; more than {MAX_SEQUENCES} are refused")
    counted = isinstance(next(leaves(forest)).sequences, int)
    for leaf in leaves(forest):
        if isinstance(leaf.sequences, int):
            if not counted:
                message = "is a number of sequences, but leaves before it list private tokens; list them in all leaves"
                yield Finding(leaf.path, f"{message}, or in none")
                return
        elif counted:
            message = "lists private tokens, but leaves before it are numbers of sequences; list them in all leaves"
            yield Finding(leaf.path, f"{message}, or in none")
            return
        else:
            for index, private in enumerate(leaf.sequences):
                total = leaf.tokens + private
                if not 1 <= total <= MAX_TOKENS:
                    message = f"this sequence has {total} tokens from the root on; it needs 1 to {MAX_TOKENS}"
                    yield Finding((*leaf.path, index), message)


def _of_levels(words: list[str]) -> Forest:
    """The forest that these levels (`NODESxTOKENS`) describe. The last level has the sequences and their private
    tokens."""
    levels: list[tuple[int, int]] = []
    for word in words:
        nodes, _, tokens = word.partition("x")
        try:
            levels.append((_read_sequences(int(nodes)), _read_tokens(int(tokens))))
        except Findings as error:
            raise Findings(Finding((), f"{word}: {error}")) from None
        if len(levels) > 1 and levels[-1][0] < levels[-2][0]:
            message = f"{word} has fewer nodes than the level above, so some of these would have no sequence"
            raise Findings(Finding((), message))
    *shared, (sequences, private) = levels
    if len(shared) > MAX_LEVELS:
        raise Findings(Finding((), f"has more than {MAX_LEVELS} levels of nodes"))
    if (nodes_in_all := sum(nodes for nodes, _ in shared)) > MAX_NODES:
        raise Findings(Finding((), f"holds {nodes_in_all} nodes; more than {MAX_NODES} are refused"))
    below: list[Any] = [private] * sequences
    for count, length in reversed(shared or [(1, 0)]):
        ends = accumulate(shares(count, len(below)), initial=0)
        below = [(length, tuple(below[begin:end])) for begin, end in pairwise(ends)]
    return tuple(below)


def _of_file(name: str) -> Forest:
    path = FilePath(name)
    try:
        text = read_text(path, yaml_file.MAX_BYTES if path.suffix in _YAML else _MAX_BYTES)
    except TextError as error:
        raise Findings(Finding((), str(error))) from None
    if path.suffix in _YAML:
        document = yaml_file.read(text, name)
        if document.problems:
            raise _named(list(map(str, document.problems)))
        raw = document.value
    else:
        document = None
        try:
            raw = from_json(text)
        except ValueError as error:
            raise Findings(Finding((), f"{name}: {error}")) from None
    try:
        return _of_lists(raw)
    except Findings as error:
        places = [document.mark(one.path) if document else _place(name, one.path) for one in error.findings]
        raise _named([f"{place}: {one.message}" for place, one in zip(places, error.findings, strict=True)]) from None


def _place(name: str, path: Path) -> str:
    """The name of a place in a JSON file: `mine.json[0][1][2]`; only the file's name if the place is too deep to be
    useful."""
    return f"{name}{''.join(f'[{step}]' for step in path)}" if len(path) <= _DEEPEST_PLACE else name


def _named(mistakes: list[str]) -> Findings:
    """Findings about the first mistakes of a file, at the value that names the file."""
    more = [f"and {len(mistakes) - _MOST_NAMED} more mistakes"] if len(mistakes) > _MOST_NAMED else []
    return Findings(*(Finding((), one) for one in [*mistakes[:_MOST_NAMED], *more]))


# JSON schemas

_TOKENS_SCHEMA = integer_schema(0, MAX_TOKENS)
_TEXT_SCHEMA = {
    "type": "string",
    "pattern": r"^\s*[0-9]+x[0-9]+(\s+[0-9]+x[0-9]+)*\s*$|\.(json|yaml|yml)$",
    "examples": ["1x8 4x256 256x32", "mine.json"],
}
TREE_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "prefixItems": [
            _TOKENS_SCHEMA,
            {
                "anyOf": [
                    integer_schema(1, MAX_SEQUENCES),
                    {"type": "array", "items": _TOKENS_SCHEMA, "minItems": 1},
                    {"$ref": "#/$defs/tree"},
                ]
            },
        ],
    },
}
"""Schema of a forest as nested lists. The schema refers to itself as `#/$defs/tree`."""
TREES_SCHEMA: dict[str, Any] = {
    "anyOf": [{"$ref": "#/$defs/tree"}, _TEXT_SCHEMA, {"type": "array", "items": _TEXT_SCHEMA, "minItems": 1}]
}
