"""JSON schemas as trees of subschemas: what llguidance would refuse without need, and where it refuses something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
"""Formats that llguidance knows. To JSON Schema any other one is a note that says nothing about values."""
_ONE = (
    *("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
"""Keywords whose value is a schema (`items`: also a list)."""
_SEVERAL = ("prefixItems", "items", "allOf", "anyOf", "oneOf")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def _subschemas(schema: Any, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each subschema that is an object, with its place as a JSON pointer."""
    waiting = [(path, schema)]
    while waiting:
        path, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield path, schema
        for key in _ONE:
            waiting.append((f"{path}/{key}", schema.get(key)))
        for key in _SEVERAL:
            if isinstance(schema.get(key), list):
                waiting += [(f"{path}/{key}/{place}", part) for place, part in enumerate(schema[key])]
        for key in _NAMED:
            if isinstance(schema.get(key), dict):
                waiting += [(f"{path}/{key}/{name}", part) for name, part in schema[key].items()]


def without_notes(schema: Any) -> Any:
    """The schema, changed in place: formats that say nothing about values are gone."""
    for _, part in _subschemas(schema):
        if isinstance(part.get("format"), str) and part["format"] not in FORMATS:
            del part["format"]
    return schema


def place_of_keys(error: str, schema: Any) -> str:
    """Where the keywords stand that an error of llguidance lists; empty if it lists none."""
    listed = re.search(r"Unimplemented keys: \[(.*)\]", error)
    keys = set(re.findall(r'"(.*?)"', listed[1])) if listed else set[str]()
    places = [path for path, part in _subschemas(schema) if keys & part.keys()]
    return f" at {', '.join(places)}" if places else ""
