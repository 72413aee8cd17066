"""The table of axes: how each axis is read from a file, its default, its names in reports and how its values are shown.

All other modules take their knowledge of axes from this table: experiments and their schema, the model of a point, the
grouping of rows, headings of tables, labels of figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chunkbench.experiment.llama import SHAPES
from chunkbench.experiment.values import (
    DTYPES,
    MAX_NAME,
    MAX_SEQUENCES,
    MAX_TOKENS,
    PROMPT_LENGTH_SCHEMA,
    SHARED_LENGTH_SCHEMA,
    AxisValue,
    Finding,
    Findings,
    LengthRange,
    Path,
    count_reader,
    integer_schema,
    read_dtype,
    read_forest,
    read_model,
    read_name,
    read_prompt_length,
    read_shared_length,
    show,
    show_value,
    unknown,
)


@dataclass(frozen=True)
class Axis:
    """One axis."""

    name: str
    description: str
    values: str
    """The values that a file may give, in words."""
    default_words: str
    default: Any
    """The value where a combination does not name the axis. None also where other axes decide it, or where a file must
    name the axis."""
    read: Callable[[object], AxisValue]
    """Reads one plain value from a file; raises `Findings`."""
    schema: Mapping[str, Any]
    """JSON schema of one value."""
    label: str
    """The axis in words, for figures."""
    unit: str = ""
    symbol: str = ""
    """The paper's symbol, as TeX writes it."""
    whole: bool = False
    """Whether a list is a single value of the axis."""
    show: Callable[[Any], str] = show_value
    """Formats a value as the text of a table cell."""
    later: bool = False
    """Whether case keys leave the axis out while it is None, so that keys from before the axis existed stay valid."""


def _counted(
    name: str,
    description: str,
    default: object,
    low: int,
    high: int,
    label: str,
    unit: str = "",
    symbol: str = "",
    **options: Any,
) -> Axis:
    multiple = options.pop("multiple", 1)
    values = f"whole number, {low} to {high}" + (f", a multiple of {multiple}" if multiple > 1 else "")
    schema = integer_schema(low, high) | ({"multipleOf": multiple} if multiple > 1 else {})
    words = options.pop("default_words", str(default))
    read = count_reader(low, high, multiple)
    return Axis(name, description, values, words, default, read, schema, label, unit, symbol, **options)


def _named(name: str, description: str, values: str, default_words: str) -> Axis:
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
    return Axis(name, description, values, default_words, None, read_name, schema, name, later=True)


_TABLE = (
    _named(
        "traffic",
        "the requests of `kind: replay`; with traffic other than fixed, n_p and n_c follow from it",
        "fixed (n_p, n_s, n_c), sharegpt, alpaca, chat, or the path of a trace",
        "fixed",
    ),
    Axis(
        "model",
        "the model whose decoder layer `kind: modules` measures; it sets heads, kv_heads and head_dim",
        f"{', '.join(SHAPES)}, or the path of a Hugging Face config.json",
        "required by kind: modules; other kinds do not accept it",
        None,
        read_model,
        {"type": "string", "examples": list(SHAPES)},
        "model",
        later=True,
    ),
    Axis(
        "n_p",
        "tokens of a prompt; a range gives prompts of different lengths, drawn from the seed",
        f"whole number, 1 to {MAX_TOKENS}, or {{low: A, high: B}}",
        "required",
        None,
        read_prompt_length,
        PROMPT_LENGTH_SCHEMA,
        "prompt tokens",
        "tokens",
        "n_p",
    ),
    Axis(
        "n_s",
        "leading tokens of a prompt that are shared",
        "whole number up to n_p, or a share of it: n_p, 0.5 n_p, 3/4 n_p",
        "required unless tree is given",
        None,
        read_shared_length,
        SHARED_LENGTH_SCHEMA,
        "shared prompt tokens",
        "tokens",
        "n_s",
    ),
    _counted("n_c", "tokens that every sequence decodes", 64, 1, MAX_TOKENS, "completion tokens", "tokens", "n_c"),
    _counted(
        "batch_size",
        "sequences decoded together",
        32,
        1,
        MAX_SEQUENCES,
        "batch size",
        "sequences",
        "b",
        default_words="32, or the number of sequences in tree",
    ),
    _counted(
        "prompts",
        "different system prompts; sequence k uses prompt k mod prompts",
        1,
        1,
        MAX_SEQUENCES,
        "prompts",
    ),
    Axis(
        "tree",
        "any forest of shared prompts, instead of n_s and prompts; one per block",
        "[[tokens, children], ...]; children is a number of sequences or another such list",
        "none",
        None,
        read_forest,
        {"$ref": "#/$defs/tree"},
        "tree",
        whole=True,
    ),
    _counted("heads", "query heads", 32, 1, 1024, "query heads", "", "h"),
    _counted("kv_heads", "K/V heads; divides heads", None, 1, 1024, "KV heads", "", "h_{kv}", default_words="heads"),
    _counted("head_dim", "head dimension", 128, 16, 256, "head dimension", "", "d", multiple=16),
    _counted("chunk_size", "tokens per chunk of ChunkAttn's cache", 64, 1, MAX_TOKENS, "chunk size", "tokens", "c"),
    # 32 is the smallest block for which vLLM's CPU kernel takes its plain vector path.
    _counted(
        "block_size",
        "tokens per block of a paged cache",
        32,
        1,
        MAX_TOKENS,
        "tokens of a block",
        "tokens",
        default_words="32, which suits vLLM's CPU kernel",
    ),
    Axis(
        "dtype",
        "element type of K, V, q and out",
        ", ".join(DTYPES),
        "dtype of the experiment",
        "auto",
        read_dtype,
        {"enum": list(DTYPES)},
        "dtype",
    ),
    _counted(
        "load",
        "requests per second as a share of the reference system's capacity, for `kind: serving`",
        None,
        1,
        1000,
        "load, % of capacity",
        "percent",
        default_words="none",
        later=True,
    ),
    _counted(
        "rate",
        "requests per minute, for `kind: serving`, instead of load",
        None,
        1,
        1_000_000,
        "requests per minute",
        default_words="none",
        later=True,
    ),
    _counted(
        "memory",
        "token slots of K/V memory, for `kind: replay`",
        None,
        1,
        1 << 40,
        "K/V memory",
        "tokens",
        default_words="enough for all requests",
        later=True,
    ),
    _named(
        "schedule", "order of the waiting requests, for `kind: replay`", "fcfs, prefix, depth-first, shortest", "fcfs"
    ),
    _counted(
        "samples",
        "answers of each request, sampled in parallel behind one prompt, for `kind: replay`",
        None,
        2,
        64,
        "answers of a request",
        default_words="one",
        later=True,
    ),
    _counted(
        "beams",
        "width of beam search, for `kind: replay`",
        None,
        2,
        64,
        "beams",
        default_words="none",
        later=True,
    ),
    _counted("threads", "CPU threads", None, 1, 4096, "threads", default_words="the machine's default"),
)

AXES: Mapping[str, Axis] = {axis.name: axis for axis in _TABLE}
"""Name -> axis. Tables show the axes in this order, and a block varies them in this order, the first axis slowest."""


def parse_axis(name: str, raw: object) -> tuple[list[tuple[Path, AxisValue]], list[Finding]]:
    """The readable values of an axis, each with its path below `raw`, and the findings about the other values.

    A list gives one value per item, a scalar gives one value. An axis that is `whole` takes exactly one value, which
    may itself be a list.
    """
    axis = AXES[name]
    if raw is None:
        return [], [Finding((), "has no value; give one or leave the key out")]
    if axis.whole or not isinstance(raw, list | tuple) or isinstance(raw, LengthRange):
        items: Iterable[tuple[Path, object]] = [((), raw)]
    elif not raw:
        return [], [Finding((), "an empty list leaves no points; give a value or leave the key out")]
    else:
        items = [((index,), item) for index, item in enumerate(raw)]
    values: list[tuple[Path, AxisValue]] = []
    findings: list[Finding] = []
    for path, item in items:
        try:
            values.append((path, axis.read(item)))
        except Findings as error:
            findings += [Finding((*path, *finding.path), finding.message, finding.key) for finding in error.findings]
    return values, findings


def parse_axes(raw: object) -> dict[str, tuple[AxisValue, ...]]:
    """Axis -> values, of a block, of `defaults` or of a filter. Raises `Findings` with every problem."""
    if not isinstance(raw, Mapping):
        raise Findings(Finding((), f"must be a mapping from axes to values, not {show(raw)}"))
    parsed: dict[str, tuple[AxisValue, ...]] = {}
    findings: list[Finding] = []
    for name, value in raw.items():
        if name not in AXES:
            findings.append(Finding((name,), unknown("axis", name, list(AXES)), key=True))
            continue
        values, value_findings = parse_axis(name, value)
        findings += [Finding((name, *finding.path), finding.message, finding.key) for finding in value_findings]
        parsed[name] = tuple(value for _, value in values)
    if findings:
        raise Findings(*findings)
    return parsed


def axes_schema() -> dict[str, Any]:
    """JSON schema of a block, of `defaults` or of a filter."""
    properties = {}
    for axis in AXES.values():
        value = dict(axis.schema)
        listed = value if axis.whole else {"anyOf": [value, {"type": "array", "items": value, "minItems": 1}]}
        properties[axis.name] = {"description": f"{axis.description} (default: {axis.default_words})", **listed}
    return {"type": "object", "properties": properties, "additionalProperties": False}
