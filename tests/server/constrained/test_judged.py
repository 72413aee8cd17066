"""All methods, against `jsonschema` and `re`: what users write, and what hypothesis draws."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkbench.server.constrained import Constraint, ConstraintRefused, Method
from tests.server.constrained.cases import CHOICES, EXPRESSIONS, SCHEMAS, VALUES
from tests.server.constrained.drawn import METHODS, TOKENIZERS, answers, check_json, check_match, grammars
from tests.torture.judged import random_regex


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


def test_the_tables_are_as_long_as_they_must_be() -> None:
    assert (len(SCHEMAS) >= 60, len(EXPRESSIONS) >= 40) == (True, True)


def _maybe(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the keywords."""
    return st.fixed_dictionaries({}, optional=keywords)


_SMALL = st.integers(-30, 30)
_NAMES = st.sampled_from(["a", "b", "name", 'a"b', "é\\", "", "$ref", "x y"])
_VALUES = st.recursive(
    st.none() | st.booleans() | _SMALL | st.sampled_from(["", "x", 'q"', "é", "Cafe\u0301", 0.5]),
    lambda part: st.lists(part, max_size=2) | st.dictionaries(_NAMES, part, max_size=2),
    max_leaves=3,
)
_LENGTHS = st.integers(0, 5)
_PATTERNS = st.sampled_from(["^[a-c]{1,4}$", r"^\d+$", "^(x|yy)z?$", "^[^a]{2}$", '^[^"]{2}$', 'a"', "^ab|cd$"])
_FORMATS = st.sampled_from(["date", "time", "ipv4", "uuid", "path", "odd"])
_NOTES = _maybe(title=st.just("t"), description=st.just("d"), default=_VALUES, nullable=st.booleans())
_LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"$ref": "#/$defs/level"}),
    _maybe(minimum=_SMALL, maximum=_SMALL, multipleOf=st.integers(1, 5)).map(
        lambda bounds: {"type": "integer", **bounds}
    ),
    _maybe(minimum=_SMALL, exclusiveMaximum=_SMALL).map(lambda bounds: {"type": "number", **bounds}),
    _maybe(minLength=_LENGTHS, maxLength=_LENGTHS, pattern=_PATTERNS).map(lambda bounds: {"type": "string", **bounds}),
    _maybe(format=_FORMATS).map(lambda bounds: {"type": "string", **bounds}),
    st.lists(_VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    _VALUES.map(lambda value: {"const": value}),
    st.just({"type": ["integer", "null", "string"], "maximum": 9, "maxLength": 2}),
)


def _containers(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(_NAMES, part, max_size=3)
    objects = st.builds(
        lambda properties, required, more: {"type": "object", "properties": properties, "required": required, **more},
        properties,
        st.lists(_NAMES, max_size=2, unique=True),
        _maybe(additionalProperties=st.just(False) | part, patternProperties=st.just({"^p": {"type": "null"}})),
    )
    arrays = _maybe(
        items=part, prefixItems=st.lists(part, min_size=1, max_size=2), minItems=_LENGTHS, maxItems=_LENGTHS
    ).map(lambda bounds: {"type": "array", **bounds})
    several = st.lists(part, min_size=1, max_size=2)
    unions = st.sampled_from(["anyOf", "oneOf", "allOf"]).flatmap(lambda word: several.map(lambda parts: {word: parts}))
    return st.one_of(objects, objects, arrays, unions)


SCHEMES = st.recursive(
    st.builds(lambda leaf, notes: {**leaf, **notes}, _LEAVES, _NOTES), _containers, max_leaves=5
).map(lambda schema: {**schema, "$defs": {"level": {"enum": ["low", 3]}}})


def judged(method: Method, tokenizer: str, schema: Any, seed: int) -> bool:
    """Whether it was followed. Raises AssertionError for a wrong answer."""
    with contextlib.suppress(ConstraintRefused):
        for text in answers(tokenizer, method, Constraint.of_schema(schema), seed, 2):
            check_json(text, schema)
        return True
    return False


def _drawn_schemas(examples: int) -> None:
    followed = []

    @settings(max_examples=examples, deadline=None, suppress_health_check=[*HealthCheck], database=None)
    @given(SCHEMES, st.sampled_from(METHODS), st.sampled_from([*TOKENIZERS]), st.integers(0, 9))
    def check(schema: Any, method: Method, tokenizer: str, seed: int) -> None:
        followed.append(judged(method, tokenizer, schema, seed))

    check()
    assert sum(followed) > 0.5 * len(followed)


def test_answers_match_drawn_schemas() -> None:
    _drawn_schemas(200)


@pytest.mark.slow
def test_answers_match_two_thousand_drawn_schemas() -> None:
    _drawn_schemas(2000)


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
