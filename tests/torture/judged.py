"""Constrained answers by all methods and tokenizers: drawn and hostile constraints, against `jsonschema` and `re`."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from tests.torture.trials import Harm, Trial, Unavailable

_PIECES = ("na", "nam", "name", "ye", "yes", "xy", "xyz", "ab", "abc", "ca", "12", "no", '":', '":"', '",', '","', '{"')
"""Also tokens of the tests' tokenizers."""
_PATTERNS = ("^[a-c]{1,4}$", r"^\d+$", "^(x|yy)z?$", '^[^"]{2}$', "^ab$|^cd$")


def random_regex(rng: random.Random, depth: int = 3) -> str:
    """Literals, classes, choices and repetitions over characters that stand for themselves as byte tokens."""
    if depth == 0 or rng.random() < 0.3:
        classes = ["a", "xyz", "[a-f]", "[0-9]", "[A-Za-z0-9]", "-", "yes", "[0-9A-F]"]
        return rng.choice([*classes, *map(re.escape, _PIECES)])
    parts = [random_regex(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    kind = rng.randrange(3)
    if kind == 0:
        return "".join(parts)
    if kind == 1:
        return f"({'|'.join(parts)})"
    low = rng.randrange(3)
    return f"({parts[0]}){{{low},{low + rng.randrange(1, 3)}}}"


def random_schema(chance: random.Random) -> Any:
    """Keywords that validators agree about."""
    return {**_schema(chance, 3), "$defs": {"level": {"enum": ["low", 3]}}}


def _schema(chance: random.Random, depth: int) -> Any:
    low, names = chance.randrange(-9, 9), ["a", "b", 'a"b', "é\\", "", "$ref", "x y"]

    def part() -> Any:
        return _schema(chance, depth - 1)

    leaves: list[Any] = [
        {"type": "boolean"},
        {"type": "integer", "minimum": low, "maximum": low + chance.randrange(20)},
        {"type": "integer", "multipleOf": chance.randrange(1, 6), "exclusiveMinimum": low},
        {"type": "string", "minLength": chance.randrange(3), "maxLength": 3 + chance.randrange(3)},
        {"type": "string", "pattern": chance.choice(_PATTERNS)},
        {"type": "string", "format": chance.choice(["date", "ipv4", "uuid", "path", "odd"]), "title": "t"},
        {"enum": chance.sample([1, "x", None, 'q"', [1, "b"], {"a": 2}, "Cafe\u0301"], 2)},
        {"type": ["integer", "null", "string"], "maximum": low, "maxLength": 2, "nullable": True},
        {"type": "number", "minimum": low, "exclusiveMaximum": low + chance.randrange(3), "default": "x"},
        {"const": chance.choice([None, True, 0.5, "Cafe\u0301", 'q"', [1, {"é": ""}]]), "description": "d"},
        {"$ref": "#/$defs/level"},
    ]
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(leaves)
    properties = {name: part() for name in chance.sample(names, chance.randrange(1, 4))}
    required = [name for name in properties if chance.random() < 0.6]
    closed = {} if chance.random() < 0.3 else {"additionalProperties": False}
    most = chance.randrange(1, 4)
    nodes: list[Any] = [
        {"type": "object", "properties": properties, "required": required, **closed},
        {"type": "object", "properties": properties, "required": [*required, "more"]},
        {"type": "object", "patternProperties": {"^p": {"type": "null"}}, "additionalProperties": part()},
        {"type": "array", "items": part(), "minItems": chance.randrange(most), "maxItems": most},
        {"type": "array", "prefixItems": [part(), part()], "items": False},
        {chance.choice(["anyOf", "allOf", "oneOf"]): [part(), part()]},
    ]
    return chance.choice(nodes)


def regex(chance: random.Random) -> dict[str, Any]:
    number, letters = chance.choice([3, 30, 400, 9000, 10**9]), "abc.*+?|()[]{}\\^$-,0189é\u0000\U0001f600"
    made = [
        "".join(chance.choice(letters) for _ in range(chance.randrange(1, 40))),
        f"(a{{{number}}}){{{number}}}",
        f"[ab]*a[ab]{{{number % 500}}}",
        f"(x+x+)+y{{0,{number}}}",
        "(" * (number % 20_000) + "a" + ")" * (number % 20_000),
        "|".join(f"{chance.random()}[0-9]*" for _ in range(min(number, 2000))),
        f"(?:.{{0,{number}}}é){{2,}}",
        "a" * chance.choice([65_536, 65_537]),
        r"(?=a)b|\1|(?<!c)d|\p{L}+" if number > 30 else r"\p{L}*\p{N}{99}",
        "" if number > 30 else "[^\\s\\S]",
    ]
    return {"regex": chance.choice(made)}


def schema(chance: random.Random) -> dict[str, Any]:
    number = chance.choice([3, 30, 900, 10**9])
    few = min(number, 900)
    made: list[Any] = [
        {"$ref": "#"},
        {"$ref": chance.choice(["#/nowhere", "http://127.0.0.1:9/x.json", "file:///etc/passwd", "#/%ff"])},
        {"anyOf": [{"$ref": "#"}] * few},
        {"allOf": [{"properties": {f"p{n}": {"pattern": f"^.*{n}.*$"}}} for n in range(min(few, 90))]},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(few)}, "required": ["p1"]},
        {"type": "array", "minItems": number, "maxItems": number - chance.choice([0, 1]), "items": {"type": "integer"}},
        {"type": "string", "minLength": number, "pattern": "(a|b)*a(a|b){30}"},
        {"type": "string", "pattern": chance.choice(["(", "a{9999}{9999}", "(?=x)", "\ud800", "[ab]*a[ab]{25}"])},
        {"enum": [random_word(chance) for _ in range(few)]},
        {"enum": chance.choice([[], [{}], [None, 1e300, "\ud800", "\u0000"]])},
        {"type": "number", "multipleOf": chance.choice([0, 1e-9, -3, 7919]), "minimum": -number, "maximum": number},
        {"type": "integer", "minimum": number, "maximum": 3},
        {"type": chance.choice(["odd", 3, [], ["string", 1]]), "format": "odd"},
        {"patternProperties": {"(a|aa)+$": {"$ref": "#"}}, "minProperties": number},
        {"oneOf": [{"type": "string", "maxLength": n} for n in range(min(few, 200))], "not": {}},
        odd_value(chance),
        json.dumps({"const": random_word(chance)})[: chance.randrange(1, 30)],
    ]
    return {"json": chance.choice(made)}


def choice(chance: random.Random) -> dict[str, Any]:
    number = chance.choice([1, 30, 3000])
    made: list[Any] = [
        [random_word(chance) for _ in range(number)],
        ["a" * n for n in range(1, min(number, 300))],
        chance.choice([[], [""], ["a", ""], ["\u0000"], ["\U0001f600", "é"], ['"', "\\", "/x/", "\n"], "abc", [1]]),
        ["x" * 70_000],
        [random_word(chance) * 500 for _ in range(number % 40)],
    ]
    return {"choice": chance.choice(made)}


def random_word(chance: random.Random) -> str:
    return "".join(chance.choice(string.printable + "é😀") for _ in range(chance.randrange(1, 20)))


def odd_value(chance: random.Random) -> Any:
    """A value of JSON where another one is expected. Python writes some that JSON does not have."""
    made: list[Any] = [None, True, -1, 0, 2**31, 2**63, 2**64, 10**400, 0.1, 1e308, float("nan"), float("inf"), -0.0]
    made += ["", "\u0000", "\ud800", "é" * 999, "x" * 100_000, "<script>", [], [[]], {}, [None], [1, "a"], [-1]]
    made += [{"a": {}}]
    made += [[1] * 5000, list(range(250, 330)), ["a"] * 3000, {f"k{n}": n for n in range(3000)}, "9" * 5000]
    return chance.choice(made)


CONSTRAINTS = 20
"""Of a trial, each followed by one method and one tokenizer."""


@contextmanager
def constrained_answers() -> Iterator[Harm]:
    try:
        import llguidance  # noqa: F401
    except ModuleNotFoundError:
        raise Unavailable("llguidance is not installed") from None
    yield harm


def harm(trial: Trial) -> int:
    for _ in range(CONSTRAINTS):
        one(trial.chance)
    return CONSTRAINTS


def one(chance: Random) -> None:
    """Follow a constraint, and check the answer. What cannot be followed is refused."""
    from chunkbench.server.constrained import Constraint, ConstraintRefused
    from tests.server.constrained.drawn import METHODS, TOKENIZERS, Cut, answers, check_json, check_match

    how: tuple[Any, Any] = chance.choice([*TOKENIZERS]), chance.choice(METHODS)
    seed = chance.randrange(2**30)
    kind = chance.choice(["schema", "schema", "expression", "choice", "hostile"])
    with suppress(ConstraintRefused, Cut):
        if kind == "schema":
            wanted = random_schema(chance)
            for text in answers(*how, Constraint.of_schema(wanted), seed):
                check_json(text, wanted)
        elif kind == "expression":
            expression = random_regex(chance)
            for text in answers(*how, Constraint.of_regex(expression), seed):
                check_match(text, expression)
        elif kind == "choice":
            texts = choice(chance)["choice"]
            if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
                for text in answers(*how, Constraint.of_choice(texts), seed):
                    assert text in texts, (text, texts)
        else:
            hostile(how, chance, seed)


def hostile(how: tuple[Any, Any], chance: Random, seed: int) -> None:
    """Whatever it is, it takes little, and ends by its own words."""
    from chunkbench.server.constrained import Constraint
    from tests.server.constrained.drawn import answers

    made = chance.choice([regex, schema])(chance)
    if "regex" in made:
        [*answers(*how, Constraint.of_regex(made["regex"]), seed)]
    else:
        [*answers(*how, Constraint.of_schema(made["json"]), seed)]
