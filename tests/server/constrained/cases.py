"""Schemas, expressions and choices that users write, and what each answer must be."""

from __future__ import annotations

from typing import Any

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def _text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def _integer(**keywords: Any) -> dict[str, Any]:
    return {"type": "integer", **keywords}


def _object(required: list[str] | None = None, open_: bool = False, **properties: Any) -> dict[str, Any]:
    wanted = [*properties] if required is None else required
    closed = {} if open_ else {"additionalProperties": False}
    return {"type": "object", "properties": properties, "required": wanted, **closed}


def _nested(levels: int, wide: int) -> dict[str, Any]:
    """Objects of optional integers, each with the next one."""
    inner = {"next": _nested(levels - 1, wide)} if levels > 1 else {}
    return _object([], **{f"p{number}": INTEGER for number in range(wide)}, **inner)


_CHAIN = {
    "$defs": {
        name: _object(x=INTEGER, **({"next": {"$ref": f"#/$defs/{after}"}} if after else {}))
        for name, after in zip("ABCDEF", "BCDEF", strict=False)
    }
    | {"F": _object(x=INTEGER)},
    "$ref": "#/$defs/A",
}
_LIST = {
    "$defs": {"node": _object(x=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
    "$ref": "#/$defs/node",
}
VALUES: list[Any] = [
    _text(pattern="^(cat|dog)$"),
    _text(pattern="^cat$|^dog$"),
    _text(pattern="^[^a]{3,12}$"),
    _text(pattern=r"^\d{4}-\d{2}-\d{2}$", minLength=10, maxLength=10),
    _text(pattern="^[a-z]+$", minLength=2, maxLength=5),
    _text(pattern=r'^a"b\\c$'),
    _text(pattern='^[^"]{1,4}$'),
    _text(pattern=r'^[^"\\]{1,4}$'),
    _text(pattern=r"^[^ -~]{2}$"),
    _text(pattern=r"^[\x00-!]{2}$"),
    _text(pattern=r"^[\x00-\x07]\[\^a\]$"),
    _text(pattern="^[\\u00e9-\\u00ff]{2}$"),
    _text(minLength=2, maxLength=3),
    _text(maxLength=0),
    _text(maxLength=8),
    _integer(minimum=1, maximum=5),
    _integer(minimum=-7, maximum=120),
    _integer(exclusiveMinimum=3, exclusiveMaximum=7),
    _integer(multipleOf=7, minimum=10, maximum=30),
    _integer(minimum=1.5, maximum=9.5),
    _integer(format="int32", minimum=0, maximum=9),
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -2.5, "maximum": 3},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 9},
    {"type": ["integer", "null"], "minimum": 3, "maximum": 5},
    {"type": ["integer", "string"], "maxLength": 3, "maximum": 9, "minimum": 0},
    {"enum": ["a", 1], "type": "string"},
    {"enum": [1, 2.5, "x", None, True, {"a": 1}, [1, "b"]]},
    {"const": "Cafe\u0301"},
    {"const": 'a "quoted" \\ one\n'},
    {"const": {"b": [1, 2.5], "a": None}},
    {"const": 1.0},
    {"const": ""},
    {"type": "boolean"},
    {"type": "null"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["a", "b"]}], "items": False},
    {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "null"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": _integer(minimum=0, maximum=9), "maxItems": 4},
    {"type": "array", "maxItems": 0},
    {"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "maxItems": 2}, "maxItems": 2},
    {"anyOf": [_integer(minimum=0, maximum=9), _text(maxLength=2)]},
    {"oneOf": [_integer(minimum=0, maximum=9), _text(maxLength=2)]},
    {"allOf": [INTEGER, {"minimum": 3, "maximum": 42}]},
    {"allOf": [_text(minLength=2), _text(maxLength=3)]},
    {"allOf": [_object(open_=True, a={"enum": [1]}), _object(open_=True, b={"enum": [2]})]},
    {"anyOf": [_object(kind={"const": "a"}, x=INTEGER), _object(kind={"const": "b"}, y={"type": "null"})]},
    _object(a={"type": "boolean"}, b={"enum": ["x", "yy"]}),
    _object([], a={"type": "boolean"}, b={"enum": ["x", "yy"]}),
    _object(["b"], a={"type": "boolean"}, b={"enum": ["x", "yy"]}, c={"type": "null"}),
    _object(**{'a "quoted"\\ name\twith é': {"type": "boolean"}, "": {"type": "null"}}),
    _object(**{"$ref": {"type": "boolean"}, "properties": {"type": "null"}, "format": {"enum": ["path"]}}),
    {"type": "object", "required": ["x"], "additionalProperties": {"type": "boolean"}, "maxProperties": 1},
    {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"enum": [1, 2]}},
    {
        "type": "object",
        "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    },
    _object(["a", "zz"], open_=True, a={"enum": [1]}),
    _text(format="date"),
    _text(format="time"),
    _text(format="date-time"),
    _text(format="email"),
    _text(format="ipv4"),
    _text(format="uuid"),
    _text(format="uri"),
    _text(format="hostname"),
    _text(format="path", maxLength=6),
    _text(format="password", maxLength=6),
    _text(format="binary", maxLength=6),
    _text(maxLength=4, title="a title", description="what it is", default="x", examples=["y"], nullable=True),
    {"$ref": "#/$defs/level", "description": "of noise"},
]
"""Of the one required property of an object."""
SCHEMAS: list[Any] = [
    *({**_object(v=value), "$defs": {"level": {"enum": ["low", "high"]}}} for value in VALUES),
    _CHAIN,
    _LIST,
    _nested(5, 12),
    _nested(6, 12),
    {"enum": ["low", "high"]},
    {"type": "array", "items": _object(["n"], n={"enum": [1, 22]}, m=TEXT), "minItems": 1, "maxItems": 2},
]
EXPRESSIONS = [
    "abc",
    "a|b",
    "cat|dog",
    "^cat$",
    "^(cat|dog)$",
    "^cat|dog$",
    "(yes|yet)x",
    "a?",
    "a?b?c?",
    "(ab){1,3}",
    "(ab){1,3}x",
    "(a|b)*c",
    "(abc|ab)(d|cd)?",
    "[a-c]{2,4}",
    "[^a-z]{1,3}",
    "[éà]{2}",
    "a[éè]é[z]",
    "x(é|z)",
    "[0-9]{3}-[0-9]{4}",
    r"\d{4}-\d{2}",
    r"\{\"n\":(1|22)\}",
    r"a\.b\*c\+",
    r"a\\b\$",
    r"\[x\]",
    r"(?i)abc",
    r"(?:a|b){2}",
    r"[A-Za-z_][A-Za-z0-9_]{0,8}",
    r"-?[0-9]{1,2}\.[0-9]",
    r"https?://[a-z]{1,8}\.(com|org)",
    r'"[a-c ]{0,3}",',
    r'\{"name":"(xy|xa)z","no":[0-9]{3}\}',
    r"(a{2}|b{3}){2}",
    r"(x+x+)+y",
    r"[ab]*a[ab]{22}c",
    r"(\+[0-9]{1,3} )?[0-9]{3}",
    r" yes| no",
    r"  two  spaces  ?",
    r"name: [a-z]{1,5}\nno: [0-9]",
    "Cafe\u0301[!?]",
    "ABC-[0-9]",
    "(Ærø|Åland|日本|😀)+",
    r"[\t ]x",
    r"(true|false|null)",
    r"(?s).{2}",
]
CHOICES = [
    ["yes", "no"],
    [" yes", " no"],
    ["red", 'a "quoted" one', "blue-green", "a.b*c", "two\nlines\tand a tab", "back\\slash", "^$|()[]{}#&~-/"],
    ["a", "ab", "abc"],
    ["Cafe\u0301", "Café", "日本", "😀😃"],
    [f"choice number {number}" for number in range(2000)],
]
