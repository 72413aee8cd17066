"""Changes JSON schemas so that llguidance accepts more of them, and finds the parts that it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
"""Formats that llguidance knows. By JSON Schema, another format does not limit values."""
_LEAP_OF_100 = "0[48]|[2468][048]|[13579][26]"
_DATE = (
    "(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    f"(?:[0-9]{{2}}(?:{_LEAP_OF_100})|(?:{_LEAP_OF_100})00)-02-29)"
)
"""A date of the calendar from 0001-01-01 to 9999-12-31. llguidance knows no leap years: it takes 2023-02-29."""
_DATES = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}[Tt]"}
_ONE = (
    *("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
"""Keywords whose value is a schema. The value of `items` may also be a list of schemas."""
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


def prepared(schema: Any) -> Any:
    """Change the schema in place so that llguidance can follow it, and return it. Formats that do not limit values
    are removed. Dates are those of the calendar. Patterns no longer allow a backspace."""
    for _, part in _subschemas(schema):
        if isinstance(part.get("format"), str) and part["format"] not in FORMATS:
            del part["format"]
        if isinstance(part.get("pattern"), str):
            part["pattern"] = _without_backspace(part["pattern"])
        if isinstance(part.get("patternProperties"), dict):
            named = part["patternProperties"]
            part["patternProperties"] = {_without_backspace(name): value for name, value in named.items()}
        dates = _DATES.get(part["format"]) if isinstance(part.get("format"), str) else None
        others = part.get("allOf", [])
        if dates is not None and isinstance(others, list):
            part["allOf"] = [*others, {"pattern": dates}]
    return schema


def _without_backspace(pattern: str) -> str:
    """The pattern without U+0008 in ranges from U+0000 on and in the characters that classes like `[^a]` allow.

    If such a class allows U+0008, llguidance 1.9.1 also allows a quote and a backslash, whatever else the class
    excludes.
    """
    pattern = re.sub(r"(\\[^xu])|\[\^(?!\])", lambda found: found[1] or r"[^\x08", pattern)
    return re.sub(r"\\(?:x00|u0000)-(?!\\(?:x|u00)0[0-8])", r"\\x00-\\x07\\x09-", pattern)


def place_of_keys(error: str, schema: Any) -> str:
    """Text with the places of the keywords that llguidance's error message lists. Empty if the message lists none."""
    listed = re.search(r"Unimplemented keys: \[(.*)\]", error)
    keys = set(re.findall(r'"(.*?)"', listed[1])) if listed else set[str]()
    places = [path for path, part in _subschemas(schema) if keys & part.keys()]
    return f" at {', '.join(places)}" if places else ""
