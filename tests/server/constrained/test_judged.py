"""All methods, against `jsonschema` and `re`: what users write, and what is drawn."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest

from chunkbench.server.constrained import Constraint, ConstraintRefused, Method
from tests.server.constrained.drawn import METHODS, TOKENIZERS, answers, check_json, check_match, grammars
from tests.torture.judged import random_regex, random_schema

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
PATTERNS = [
    "^(cat|dog)$", "^cat$|^dog$", "^[^a]{3,12}$", r'^a"b\\c$', '^[^"]{1,4}$', r'^[^"\\]{1,4}$', r"^[^ -~]{2}$",
    r"^[\x00-!]{2}$", r"^[\x00-\x07]\[\^a\]$", "^[\\u00e9-\\u00ff]{2}$",
]  # fmt: skip
VALUES: list[Any] = [
    *(_text(pattern=pattern) for pattern in PATTERNS),
    _text(pattern=r"^\d{4}-\d{2}-\d{2}$", minLength=10, maxLength=10),
    _text(pattern="^[a-z]+$", minLength=2, maxLength=5),
    _integer(minimum=-7, maximum=120),
    _integer(minimum=1.5, maximum=9.5),
    _integer(format="int32", minimum=0, maximum=9),
    {"type": "number", "exclusiveMinimum": -2.5, "maximum": 3},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 9},
    {"type": ["integer", "string"], "maxLength": 3, "maximum": 9, "minimum": 0},
    {"enum": ["a", 1], "type": "string"},
    {"enum": [1, 2.5, "x", None, True, {"a": 1}, [1, "b"]]},
    {"const": "Cafe\u0301"},
    {"const": 'a "quoted" \\ one\n'},
    {"const": {"b": [1, 2.5], "a": None}},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["a", "b"]}], "items": False},
    {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "null"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "maxItems": 2}, "maxItems": 2},
    {"allOf": [_object(open_=True, a={"enum": [1]}), _object(open_=True, b={"enum": [2]})]},
    {"anyOf": [_object(kind={"const": "a"}, x=INTEGER), _object(kind={"const": "b"}, y={"type": "null"})]},
    _object(["b"], a={"type": "boolean"}, b={"enum": ["x", "yy"]}, c={"type": "null"}),
    _object(**{'a "quoted"\\ name\twith é': {"type": "boolean"}, "": {"type": "null"}}),
    _object(**{"$ref": {"type": "boolean"}, "properties": {"type": "null"}, "format": {"enum": ["path"]}}),
    {"type": "object", "required": ["x"], "additionalProperties": {"type": "boolean"}, "maxProperties": 1},
    {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "boolean"}}, "additionalProperties": False},
    {
        "type": "object",
        "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    },
    _object(["a", "zz"], open_=True, a={"enum": [1]}),
    *(_text(format=format) for format in ["date", "time", "date-time", "email", "ipv4", "uuid", "uri", "hostname"]),
    *(_text(format=format, maxLength=6) for format in ("path", "password", "binary")),
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
    "abc", "a|b", "cat|dog", "^cat$", "^(cat|dog)$", "^cat|dog$", "(yes|yet)x", "a?", "a?b?c?", "(ab){1,3}",
    "(ab){1,3}x", "(a|b)*c", "(abc|ab)(d|cd)?", "[a-c]{2,4}", "[^a-z]{1,3}", "[éà]{2}", "a[éè]é[z]", "x(é|z)",
    r"[0-9]{3}-[0-9]{4}", r"\d{4}-\d{2}", r"a\.b\*c\+", r"a\\b\$", r"\[x\]", "(?i)abc", "(?:a|b){2}",
    r"[A-Za-z_][A-Za-z0-9_]{0,8}", r"-?[0-9]{1,2}\.[0-9]", r"https?://[a-z]{1,8}\.(com|org)", "(a{2}|b{3}){2}",
    "(x+x+)+y", "[ab]*a[ab]{22}c", "ABC-[0-9]", "(true|false|null)", r"\{\"n\":(1|22)\}", r'"[a-c ]{0,3}",',
    r'\{"name":"(xy|xa)z","no":[0-9]{3}\}', r"(\+[0-9]{1,3} )?[0-9]{3}", " yes| no", "  two  spaces  ?",
    r"name: [a-z]{1,5}\nno: [0-9]", r"[\t ]x", "(?s).{2}", "Cafe\u0301[!?]", "(Ærø|Åland|日本|😀)+",
]  # fmt: skip
CHOICES = [
    ["yes", "no"],
    [" yes", " no"],
    ["red", 'a "quoted" one', "blue-green", "a.b*c", "two\nlines\tand a tab", "back\\slash", "^$|()[]{}#&~-/"],
    ["a", "ab", "abc"],
    ["Cafe\u0301", "Café", "日本", "😀😃"],
    [f"choice number {number}" for number in range(2000)],
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_answers_are_what_was_asked_for(method: Method, tokenizer: str) -> None:
    finished = 0
    for schema in SCHEMAS:
        for text in answers(tokenizer, method, Constraint.of_schema(schema), 1):
            finished += 1
            check_json(text, schema)
    for regex in EXPRESSIONS:
        for text in answers(tokenizer, method, Constraint.of_regex(regex), 2):
            finished += 1
            check_match(text, regex)
    for texts in CHOICES:
        for text in answers(tokenizer, method, Constraint.of_choice(texts), 3):
            finished += 1
            assert text in texts
    assert finished > 0.8 * len(SCHEMAS + EXPRESSIONS + CHOICES)


def test_a_pattern_that_excludes_quotes_gets_none() -> None:
    """What llguidance gets wrong shows in one of fifty answers."""
    for value in VALUES:
        if "pattern" in value:
            schema = {"type": "object", "properties": {"v": value}, "required": ["v"], "additionalProperties": False}
            for text in answers("bytes", "mask", Constraint.of_schema(schema), 4, 60):
                check_json(text, schema)


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_answers_match_drawn_schemas(count: int) -> None:
    followed = 0
    for number in range(count):
        chance = random.Random(number)
        schema, method, tokenizer = random_schema(chance), chance.choice(METHODS), chance.choice([*TOKENIZERS])
        with contextlib.suppress(ConstraintRefused):
            for text in answers(tokenizer, method, Constraint.of_schema(schema), number, 2):
                check_json(text, schema)
            followed += 1
    assert followed > 0.5 * count


@pytest.mark.slow
def test_answers_match_two_thousand_drawn_expressions() -> None:
    for number in range(2000):
        chance = random.Random(number)
        regex, method, tokenizer = random_regex(chance), chance.choice(METHODS), chance.choice([*TOKENIZERS])
        for text in answers(tokenizer, method, Constraint.of_regex(regex), number):
            check_match(text, regex)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_what_is_known_to_be_allowed_is_in_the_mask(tokenizer: str) -> None:
    """And in text without a choice the mask alone says that a token may come."""
    made, chance, known = grammars(tokenizer, "mask"), random.Random(0), 0
    size = len(made.vocabulary.lengths)
    for regex in EXPRESSIONS:
        matcher = made.matcher(Constraint.of_regex(regex))
        while not matcher.complete:
            bits = np.zeros(-(-size // 32), np.int32)
            matcher.allow(bits)
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), count=size, bitorder="little")).tolist()
            found = [token for token in range(size) if matcher.allows(token)]
            assert found in ([], allowed)
            known += bool(found)
            more = [token for token in allowed if token not in made.vocabulary.library.eos_tokens]
            if not more or chance.random() < 0.1:
                break
            matcher.accept(chance.choice(more))
    assert known > 20
