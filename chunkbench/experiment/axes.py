"""The axes of a sweep: what each means, its default, and how its values are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from chunkbench.experiment.errors import did_you_mean
from chunkbench.experiment.llama import SHAPES, ShapeError, shape_of
from chunkbench.experiment.point import Dtype, TreeNode
from chunkbench.experiment.units import parse_share
from chunkbench.experiment.yaml_tree import Misread

MAX_TOKENS = 1 << 20
"""Most tokens of one prompt or completion."""
MAX_SEQUENCES = 1 << 16
DTYPES: tuple[str, ...] = ("auto", *get_args(Dtype))

Path = tuple[str | int, ...]


class LengthRange(NamedTuple):
    """Ragged prompts: lengths from low to high, both included."""

    low: int
    high: int


Forest = tuple[TreeNode, ...]
AxisValue = int | str | LengthRange | Forest
"""A count; a share of n_p, a dtype or a model as text; a range of n_p; or a forest of prompts."""


class Finding(NamedTuple):
    """Something wrong at a path below the value that is being read; `key` asks for the place of the key instead."""

    path: Path
    message: str
    key: bool = False


class Findings(ValueError):
    """One or more findings in one value."""

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings
        super().__init__("; ".join(finding.message for finding in findings))


@dataclass(frozen=True)
class AxisInfo:
    """What `chunkbench list axes` shows of an axis and how one of its values is read.

    `parse` takes a plain value and raises `Findings`; `schema` is the JSON schema of one value.
    """

    description: str
    type: str
    default: str
    parse: Callable[[object], AxisValue]
    schema: Mapping[str, Any]


def parse_axis(name: str, raw: object) -> tuple[list[tuple[Path, AxisValue]], list[Finding]]:
    """Values of an axis, each with its path below `raw`, and what is wrong with the others.

    A list gives one value per item, a scalar one value; `tree` always takes exactly one forest, which is itself a list.
    """
    if raw is None:
        return [], [Finding((), "has no value; give one or leave the key out")]
    if name == "tree" or not isinstance(raw, list | tuple) or isinstance(raw, LengthRange):
        items: Iterable[tuple[Path, object]] = [((), raw)]
    elif not raw:
        return [], [Finding((), "an empty list leaves no points; give a value or leave the key out")]
    else:
        items = [((index,), item) for index, item in enumerate(raw)]
    values: list[tuple[Path, AxisValue]] = []
    findings: list[Finding] = []
    for path, item in items:
        try:
            values.append((path, AXES[name].parse(item)))
        except Findings as error:
            findings += [Finding((*path, *found.path), found.message, found.key) for found in error.findings]
    return values, findings


def parse_axes(raw: object) -> dict[str, tuple[AxisValue, ...]]:
    """Axis -> values, of a block, of `defaults` or of a filter. Raises `Findings` with everything that is wrong."""
    if not isinstance(raw, Mapping):
        raise Findings(Finding((), f"must be a mapping from axes to values, not {show(raw)}"))
    parsed: dict[str, tuple[AxisValue, ...]] = {}
    findings: list[Finding] = []
    for name, value in raw.items():
        if name not in AXES:
            findings.append(Finding((name,), unknown("axis", name, list(AXES)), key=True))
            continue
        values, wrong = parse_axis(name, value)
        findings += [Finding((name, *found.path), found.message, found.key) for found in wrong]
        parsed[name] = tuple(value for _, value in values)
    if findings:
        raise Findings(*findings)
    return parsed


def unknown(what: str, name: object, known: Sequence[str]) -> str:
    """Message for a name that is not known; the caller names it."""
    if isinstance(name, str) and ":" in name:
        return f"unknown {what}; put a space after the colon"
    return f"unknown {what}{did_you_mean(str(name)[:60], known)}"


def show(value: object) -> str:
    """A value as a message quotes it: short, and telling text from numbers."""
    if isinstance(value, Misread):
        return repr(value)
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _count(low: int, high: int, multiple: int = 1) -> Callable[[object], int]:
    def parse(raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int):
            if isinstance(raw, float) and raw.is_integer():
                raise Findings(Finding((), f"{raw} is not written as a whole number; write {int(raw)}"))
            if isinstance(raw, str) and raw.isdecimal():
                raise Findings(Finding((), f"{raw!r} is text; write {int(raw[:18])} without quotes"))
            raise Findings(Finding((), f"must be a whole number, not {show(raw)}"))
        if not low <= raw <= high:
            raise Findings(Finding((), f"{raw} is outside {low} to {high}"))
        if raw % multiple:
            raise Findings(Finding((), f"{raw} is not a multiple of {multiple}"))
        return raw

    return parse


_tokens = _count(0, MAX_TOKENS)
_positive_tokens = _count(1, MAX_TOKENS)
_sequences = _count(1, MAX_SEQUENCES)


def _n_p(raw: object) -> int | LengthRange:
    if isinstance(raw, LengthRange):
        raw = raw._asdict()
    if not isinstance(raw, Mapping):
        return _positive_tokens(raw)
    findings = [
        Finding((key,), unknown("key", key, ("low", "high")), True) for key in raw if key not in ("low", "high")
    ]
    for key in ("low", "high"):
        if key not in raw:
            findings.append(Finding((), f"a range needs {key}, as in {{low: 512, high: 1024}}"))
            continue
        try:
            _positive_tokens(raw[key])
        except Findings as error:
            findings += [Finding((key,), found.message) for found in error.findings]
    if findings:
        raise Findings(*findings)
    if raw["low"] > raw["high"]:
        raise Findings(Finding(("low",), f"{raw['low']} is larger than high = {raw['high']}"))
    return raw["low"] if raw["low"] == raw["high"] else LengthRange(raw["low"], raw["high"])


def _n_s(raw: object) -> int | str:
    if not isinstance(raw, str) or raw.isdecimal():
        return _tokens(raw)
    try:
        parse_share(raw)
    except ValueError as error:
        raise Findings(Finding((), str(error))) from None
    return raw


def _dtype(raw: object) -> str:
    if isinstance(raw, str) and raw in DTYPES:
        return raw
    short = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
    text = raw if isinstance(raw, str) else show(raw)
    hint = f"; did you mean {short[text]}?" if text in short else did_you_mean(text[:60], DTYPES)
    raise Findings(Finding((), f"{show(raw)} is not a dtype{hint}"))


def _model(raw: object) -> str:
    if not isinstance(raw, str):
        raise Findings(Finding((), f"must be the name of a model or the path of a config.json, not {show(raw)}"))
    try:
        shape_of(raw)
    except ShapeError as error:
        raise Findings(Finding((), str(error))) from None
    return raw


def _tree(raw: object) -> Forest:
    form = "a tree is a list of [tokens, children], children a number of sequences or again such a list"
    if not isinstance(raw, list | tuple) or not raw:
        raise Findings(Finding((), f"must be a list, not {show(raw)}; {form}"))
    nodes: list[TreeNode] = []
    findings: list[Finding] = []
    for index, node in enumerate(raw):
        if not isinstance(node, list | tuple) or len(node) != 2:
            findings.append(Finding((index,), f"must be a pair [tokens, children]; {form}"))
            continue
        parsed: list[Any] = []
        for place, parse in enumerate((_tokens, _tree if isinstance(node[1], list | tuple) else _sequences)):
            try:
                parsed.append(parse(node[place]))
            except Findings as error:
                findings += [Finding((index, place, *found.path), found.message) for found in error.findings]
        if len(parsed) == 2:
            nodes.append((parsed[0], parsed[1]))
    if findings:
        raise Findings(*findings)
    return tuple(nodes)


def sequences_in(forest: Forest) -> int:
    """How many sequences a forest holds."""
    return sum(children if isinstance(children, int) else sequences_in(children) for _, children in forest)


def tree_paths(forest: Forest, above: int = 0, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """Path of every node's token count, and the tokens from the root to the end of that node."""
    for index, (tokens, children) in enumerate(forest):
        yield (*path, index, 0), above + tokens
        if not isinstance(children, int):
            yield from tree_paths(children, above + tokens, (*path, index, 1))


def _integers(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


_LENGTH = _integers(1, MAX_TOKENS)
_RANGE_SCHEMA = {
    "type": "object",
    "properties": {"low": _LENGTH, "high": _LENGTH},
    "required": ["low", "high"],
    "additionalProperties": False,
}
_SHARE_SCHEMA = {
    "type": "string",
    "pattern": r"^(\d+(\.\d+)?(/\d+)?)? ?n_p$",
    "examples": ["n_p", "0.5 n_p", "3/4 n_p"],
}


def _axis(description: str, default: str, low: int, high: int, multiple: int = 1) -> AxisInfo:
    kind = f"whole number, {low} to {high}" + (f", a multiple of {multiple}" if multiple > 1 else "")
    schema = _integers(low, high) | ({"multipleOf": multiple} if multiple > 1 else {})
    return AxisInfo(description, kind, default, _count(low, high, multiple), schema)


AXES: dict[str, AxisInfo] = {
    "model": AxisInfo(
        "whose decoder layer the modules of `kind: modules` belong to; heads and head_dim follow",
        f"{', '.join(SHAPES)}, or the path of a Hugging Face config.json",
        "required by kind: modules, and there alone",
        _model,
        {"type": "string", "examples": list(SHAPES)},
    ),
    "n_p": AxisInfo(
        "tokens of a prompt; a range draws ragged prompts from the seed",
        f"whole number, 1 to {MAX_TOKENS}, or {{low: A, high: B}}",
        "required",
        _n_p,
        {"anyOf": [_LENGTH, _RANGE_SCHEMA]},
    ),
    "n_s": AxisInfo(
        "leading tokens of a prompt that are shared",
        "whole number up to n_p, or a share of it: n_p, 0.5 n_p, 3/4 n_p",
        "required unless tree is given",
        _n_s,
        {"anyOf": [_integers(0, MAX_TOKENS), _SHARE_SCHEMA]},
    ),
    "n_c": _axis("tokens that every sequence decodes", "64", 1, MAX_TOKENS),
    "batch_size": _axis("sequences decoded together", "32, or what tree holds", 1, MAX_SEQUENCES),
    "heads": _axis("query heads", "32", 1, 1024),
    "kv_heads": _axis("K/V heads; divides heads", "heads", 1, 1024),
    "head_dim": _axis("head dimension", "128", 16, 256, multiple=16),
    "chunk_size": _axis("tokens of a chunk of ChunkAttn's cache", "64", 1, MAX_TOKENS),
    # 32 is the smallest block for which vLLM's CPU kernel takes its plain vector path.
    "block_size": _axis("tokens of a block of a paged cache", "32, as suits vLLM's CPU kernel", 1, MAX_TOKENS),
    "dtype": AxisInfo(
        "element type of K, V, q and out",
        ", ".join(DTYPES),
        "dtype of the experiment",
        _dtype,
        {"enum": list(DTYPES)},
    ),
    "threads": _axis("CPU threads", "the machine's default", 1, 4096),
    "prompts": _axis("different system prompts; sequence k uses prompt k mod prompts", "1", 1, MAX_SEQUENCES),
    "tree": AxisInfo(
        "any forest of prompts, in place of n_s and prompts; one per block",
        "[[tokens, children], ...], children a number of sequences or again such a list",
        "none",
        _tree,
        {"$ref": "#/$defs/tree"},
    ),
}

TREE_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "prefixItems": [
            _integers(0, MAX_TOKENS),
            {"anyOf": [_integers(1, MAX_SEQUENCES), {"$ref": "#/$defs/tree"}]},
        ],
    },
}


def axes_schema() -> dict[str, Any]:
    """JSON schema of a block, of `defaults` or of a filter."""
    properties = {}
    for name, axis in AXES.items():
        one = dict(axis.schema)
        listed = one if name == "tree" else {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}
        properties[name] = {"description": f"{axis.description} (default: {axis.default})", **listed}
    return {"type": "object", "properties": properties, "additionalProperties": False}
