"""Reads and shows values of experiments as users write them: durations, percentages, lengths, shares."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from chunkbench.bench.experiment.findings import Finding, Findings, show, unknown
from chunkbench.bench.experiment.terms import Dtype
from chunkbench.bench.experiment.tree import Forest, show_forest, spell_forest
from chunkbench.draft import parents_of
from chunkbench.kv_dtype import KV_DTYPES
from chunkbench.latent import LATENTS, LatentShape, ProjectionsTime
from chunkbench.llama import LlamaShape, ShapeError, shape_of
from chunkbench.text_file import did_you_mean, is_text

_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([a-z]+)")
_PERCENT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?%")


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `5m`, `90s`, `1h30m`, `0.5s` or `250ms`.

    Units go from large to small, each at most once. Raises `ValueError`, which says how to write a duration.
    """
    hint = "write it like 5m, 90s, 1h30m or 0.5s"
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            raise ValueError(f"{text} has no unit; write {text}s for seconds or {text}m for minutes")
        raise ValueError(f"{text!r} is not a duration; {hint}")
    units = [unit for _, unit in parts]
    for unit in units:
        if unit not in _SECONDS:
            raise ValueError(f"{text!r} has an unknown unit {unit!r} (units are h, m, s and ms); {hint}")
    if units != sorted(set(units), key=list(_SECONDS).index):
        raise ValueError(f"{text!r} must name each unit once, the largest first; {hint}")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ValueError("a duration must be longer than zero")
    return seconds


def parse_percent(text: str) -> float:
    """Convert `2%` to 0.02. Raises `ValueError` on anything else."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a percentage; write it like 2% or 0.02")
    return float(Fraction(match[1]) / 100)


_SHARE = re.compile(r"(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)(?:/([0-9]{1,9}))?)? ?n_p")
MAX_TOKENS = 1 << 20
"""Largest number of tokens of one prompt or completion."""
MAX_NAME = 4096
"""Largest number of characters of a name or path. Linux has the same limit."""
MAX_SEQUENCES = 1 << 16
MAX_LATENT = 1024
"""Largest number of dimensions of a key of latent attention."""
DTYPES: tuple[str, ...] = ("auto", *get_args(Dtype))


class LengthRange(NamedTuple):
    """Limits of the prompt lengths in tokens, both included."""

    low: int
    high: int


class Share(NamedTuple):
    """A share of n_p, as in `0.5 n_p`."""

    of_n_p: Fraction
    text: str
    """The share as the file writes it."""

    @classmethod
    def read(cls, text: str) -> Share:
        """Read a share between 0 and 1 from `n_p`, `0.5 n_p` or `3/4 n_p`. Raises `ValueError` on other text."""
        match = _SHARE.fullmatch(text)
        if match is None or (match[2] is not None and (int(match[2]) == 0 or "." in match[1])):
            raise ValueError(f"{text!r} is not a number of tokens; write it like 512, n_p, 0.5 n_p or 3/4 n_p")
        share = Fraction(match[1] or 1) / int(match[2] or 1)
        if share > 1:
            raise ValueError(f"{text!r} is more than the whole prompt")
        return cls(share, text)

    def tokens(self, n_p: object) -> Fraction | None:
        """Number of tokens, possibly a fraction; None if n_p is not a single number."""
        return self.of_n_p * n_p if isinstance(n_p, int) else None


AxisValue = int | str | LengthRange | Share | Forest | LlamaShape | LatentShape
"""One value of an axis: a count, a name, a range of prompt lengths, a share of n_p, a forest of prompts, or the shape
of a model or of latent attention."""


def count_reader(low: int, high: int, multiple: int = 1) -> Callable[[object], int]:
    """Make a function that reads whole numbers from low to high. The function raises `Findings` for other values."""

    def read(raw: object) -> int:
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

    return read


_read_tokens = count_reader(0, MAX_TOKENS)
_read_some_tokens = count_reader(1, MAX_TOKENS)


def read_prompt_length(raw: object) -> int | LengthRange:
    """Tokens of a prompt, or a range `{low: A, high: B}` of them."""
    if not isinstance(raw, Mapping):
        return _read_some_tokens(raw)
    _check_sizes(raw, ("low", "high"), _read_some_tokens, "a range needs {}, as in {{low: 512, high: 1024}}")
    if raw["low"] > raw["high"]:
        raise Findings(Finding(("low",), f"{raw['low']} is larger than high = {raw['high']}"))
    return raw["low"] if raw["low"] == raw["high"] else LengthRange(raw["low"], raw["high"])


def _check_sizes(raw: Mapping[Any, object], keys: Sequence[str], read: Callable[[object], int], missing: str) -> None:
    """Check a mapping that has a number for each of these keys and no other key. `missing`: the message for a key that
    is not there. Raises `Findings`."""
    findings = [Finding((key,), unknown("key", key, keys), True) for key in raw if key not in keys]
    for key in keys:
        if key not in raw:
            findings.append(Finding((), missing.format(key)))
            continue
        try:
            read(raw[key])
        except Findings as error:
            findings += [Finding((key,), finding.message) for finding in error.findings]
    if findings:
        raise Findings(*findings)


def read_shared_length(raw: object) -> int | Share:
    """Number of shared tokens, or a share of n_p such as `0.5 n_p`."""
    if not isinstance(raw, str) or raw.isdecimal():
        return _read_tokens(raw)
    try:
        return Share.read(raw)
    except ValueError as error:
        raise Findings(Finding((), str(error))) from None


def read_dtype(raw: object) -> str:
    short = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
    return _one_of(DTYPES, raw, "is not a dtype", short)


def read_kv_dtype(raw: object) -> str:
    return _one_of(KV_DTYPES, raw, "is no form of K and V")


def _one_of(names: Sequence[str], raw: object, refused: str, short: Mapping[str, str] = MappingProxyType({})) -> str:
    """One of these names. `short`: other names that people write -> the name."""
    if isinstance(raw, str) and raw in names:
        return raw
    text = raw if isinstance(raw, str) else show(raw)
    hint = f"; did you mean {short[text]}?" if text in short else did_you_mean(text[:60], names)
    raise Findings(Finding((), f"{show(raw)} {refused}{hint}"))


def read_model(raw: object) -> LlamaShape:
    """The shape of a known model, or of the `config.json` at a path."""
    if not isinstance(raw, str):
        raise Findings(Finding((), f"must be the name of a model or the path of a config.json, not {show(raw)}"))
    try:
        return shape_of(raw)
    except ShapeError as error:
        raise Findings(Finding((), str(error))) from None


def read_projections(raw: object) -> str:
    return _one_of(get_args(ProjectionsTime), raw, "does not say whether projections are timed")


def read_draft(raw: object) -> str:
    """Read a draft; one level of a tree is read as a number."""
    text = str(raw) if isinstance(raw, str | int) and not isinstance(raw, bool) else ""
    try:
        parents_of(text)
    except ValueError as error:
        raise Findings(Finding((), str(error) if text else f"must be a text, not {show(raw)}")) from None
    return " ".join(text.split())


def read_latent(raw: object) -> LatentShape:
    """The shape of latent attention of a known model, or its dimensions."""
    if not isinstance(raw, Mapping):
        return LATENTS[_one_of(tuple(LATENTS), raw, "is no model with latent attention")]
    example = "needs {}, as in {{kv_rank: 512, rope: 64, nope: 128, v: 128}}"
    _check_sizes(raw, _LATENT_SIZES, _read_latent_size, example)
    shape = LatentShape(**raw)
    if max(shape.width, shape.key_dim) > MAX_LATENT:
        raise Findings(Finding((), f"kv_rank + rope and nope + rope are at most {MAX_LATENT}"))
    return shape


_LATENT_SIZES = tuple(name for name in LatentShape.model_fields if name != "heads")
_read_latent_size = count_reader(16, MAX_LATENT, 16)


def read_name(raw: object) -> str:
    """Read a name or a path. Whether it exists is checked later."""
    if not isinstance(raw, str) or not raw.strip() or len(raw) > MAX_NAME or not is_text(raw):
        raise Findings(Finding((), f"must be a name or a path of at most {MAX_NAME} characters, not {show(raw)}"))
    return raw


def show_value(value: Any) -> str:
    """One value of an axis as tables show it: `-` for none, `96-256` for a range, `64x(64x2 0x1)` for a tree."""
    return show_forest(value) if _is_forest(value) else spell_value(value)


def spell_value(value: Any) -> str:
    """One value of an axis as text. Long trees are not shortened."""
    if value is None:
        return "-"
    if _is_forest(value):
        return spell_forest(value)
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _is_forest(value: object) -> bool:
    return isinstance(value, tuple) and not all(isinstance(part, int) for part in value)


# JSON schemas of values


def integer_schema(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


_LENGTH_SCHEMA = integer_schema(1, MAX_TOKENS)
_RANGE_SCHEMA = {
    "type": "object",
    "properties": {"low": _LENGTH_SCHEMA, "high": _LENGTH_SCHEMA},
    "required": ["low", "high"],
    "additionalProperties": False,
}
_SHARE_SCHEMA = {
    "type": "string",
    "pattern": r"^(\d+(\.\d+)?(/\d+)?)? ?n_p$",
    "examples": ["n_p", "0.5 n_p", "3/4 n_p"],
}
_LATENT_SIZE = integer_schema(16, MAX_LATENT) | {"multipleOf": 16}
LATENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": list(LATENTS)},
        {
            "type": "object",
            "properties": dict.fromkeys(_LATENT_SIZES, _LATENT_SIZE),
            "required": list(_LATENT_SIZES),
            "additionalProperties": False,
        },
    ]
}
PROMPT_LENGTH_SCHEMA: dict[str, Any] = {"anyOf": [_LENGTH_SCHEMA, _RANGE_SCHEMA]}
SHARED_LENGTH_SCHEMA: dict[str, Any] = {"anyOf": [integer_schema(0, MAX_TOKENS), _SHARE_SCHEMA]}
