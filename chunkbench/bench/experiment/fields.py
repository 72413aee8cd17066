"""Types of an experiment's fields. Each type reads its field from a file, and has a JSON schema."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from chunkbench.bench import workload
from chunkbench.bench.experiment.findings import Finding, Findings, show
from chunkbench.bench.experiment.terms import Cache, Mode, Protocol
from chunkbench.bench.experiment.values import parse_duration, parse_percent
from chunkbench.text_file import did_you_mean

T = TypeVar("T")
DEFINED = "x-defined"
"""Key that holds the name of a definition in a field's JSON schema. `schema.py` replaces the key by a `$ref`. The field
cannot have the `$ref` itself, because pydantic accepts only references to definitions that pydantic made."""


def _listed(raw: object) -> object:
    return raw if isinstance(raw, list | tuple) else [raw]


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    repeated = [(place, value) for place, value in enumerate(values) if value in values[:place]]
    if repeated:
        raise Findings(*(Finding((place,), f"{value} is listed twice") for place, value in repeated))
    return values


def _not_empty(values: tuple[T, ...]) -> tuple[T, ...]:
    # Not min_length: pydantic counts only valid items, so it would call a list of invalid items empty.
    if not values:
        raise ValueError("must not be empty")
    return values


def _implementation(name: str, info: ValidationInfo) -> str:
    """Check the name against the implementations of the experiment's kind, or of all kinds if the kind is not valid."""
    known = workload.implementations(info.data.get("kind"))
    if name not in known:
        raise ValueError(f"unknown implementation {show(name)}{did_you_mean(name[:60], known)}")
    return name


def _duration(raw: object, info: ValidationInfo) -> object:
    if isinstance(raw, str):
        return parse_duration(raw)
    # A file must give the unit; Python code and a dumped model give seconds.
    if isinstance(raw, int | float) and not isinstance(raw, bool) and info.context is not None:
        raise ValueError(f"{raw} has no unit; write {raw}s for seconds or {raw}m for minutes")
    return raw


def _fraction(raw: object) -> object:
    if isinstance(raw, str):
        return parse_percent(raw)
    if isinstance(raw, int | float) and not isinstance(raw, bool) and raw >= 1:
        raise ValueError(f"{raw} is not below 1; for {raw} percent write {raw}%")
    return raw


def _list_schema(item: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}]}


DURATION = r"^(\d+(\.\d+)?(h|ms|m|s))+$"
_SECONDS_SCHEMA = {"type": "string", "pattern": DURATION, "examples": ["5m", "90s", "1h30m"]}
_SHARE_SCHEMA = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "string", "pattern": r"^\d+(\.\d+)? ?%$", "examples": ["2%"]},
    ]
}

Axes = Annotated[dict[str, Any], WithJsonSchema({DEFINED: "axes"})]
"""Axis -> values as the file writes them, in a block, in `defaults` or in a filter. `Sweep` reads the values."""

Seconds = Annotated[
    float, BeforeValidator(_duration), Field(strict=True, gt=0, allow_inf_nan=False), WithJsonSchema(_SECONDS_SCHEMA)
]
Fraction01 = Annotated[float, BeforeValidator(_fraction), Field(strict=True, gt=0, lt=1), WithJsonSchema(_SHARE_SCHEMA)]
Whole = Annotated[int, Field(strict=True, le=1 << 53)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
ImplementationId = Annotated[str, AfterValidator(_implementation), WithJsonSchema({DEFINED: "implementation"})]

_list = BeforeValidator(_listed)
_unique = AfterValidator(_distinct)
_filled = AfterValidator(_not_empty)
Blocks = Annotated[tuple[Axes, ...], _filled]
Implementations = Annotated[
    tuple[ImplementationId, ...],
    _list,
    _unique,
    _filled,
    WithJsonSchema(_list_schema({DEFINED: "implementation"})),
]
Protocols = Annotated[
    tuple[Protocol, ...],
    _list,
    _unique,
    _filled,
    WithJsonSchema(_list_schema({"enum": ["strict", "paper"]})),
]
Caches = Annotated[tuple[Cache, ...], _list, _unique, _filled, WithJsonSchema(_list_schema({"enum": ["cold", "warm"]}))]
Modes = Annotated[
    tuple[Mode, ...],
    _list,
    _unique,
    _filled,
    WithJsonSchema(_list_schema({"enum": ["eager", "events", "graph"]})),
]
