"""Answers drawn by a constraint alone, without a model; what they must be by `jsonschema` and `re`; and tokenizers."""

from __future__ import annotations

import datetime
import json
import random
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import jsonschema
import numpy as np
from tokenizers import Tokenizer, normalizers

from chunkbench.server.constrained import Constraint, Grammars, Matcher, Method
from tests.server.engine.models import END, MERGES, byte_tokenizer, sentencepiece_tokenizer

METHODS: tuple[Method, ...] = get_args(Method)


class Cut(Exception):
    """An answer that cannot go on, and says so."""


@cache
def grammars(tokenizer: str, method: Method) -> Grammars:
    """By one of TOKENIZERS."""
    made, more, end = TOKENIZERS[tokenizer]
    return Grammars(made.to_str(), made.get_vocab_size() + more, {end}, method)


def normalising_tokenizer() -> Tokenizer:
    """It writes small letters alone."""
    made = byte_tokenizer(MERGES)
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    return made


TOKENIZERS: dict[str, tuple[Tokenizer, int, int]] = {
    "bytes": (byte_tokenizer(MERGES), 26, END),
    "normalising": (normalising_tokenizer(), 0, END),
    "SentencePiece": (sentencepiece_tokenizer(), 0, 2),
    "longer than the embedding": (byte_tokenizer(MERGES), -5, END),
}
"""Name -> a tokenizer, how many ids the model has more, the id that ends an answer."""


def drawn(made: Grammars, matcher: Matcher, chance: random.Random, most: int = 120) -> str | None:
    """An answer whose tokens are drawn among the allowed ones, as the engine would write it; None if it was cut.

    Raises Cut where no token is allowed: a limit was reached.
    """
    vocabulary, answer = made.vocabulary, list[int]()
    size = len(vocabulary.lengths)
    closing = np.array([bool({*vocabulary.text([token])} & {*b'"}],'}) for token in range(size)])
    while not matcher.complete:
        found = matcher.forced(answer, most)
        if found is not None:
            before = vocabulary.text(answer)
            answer = [*answer[: found.kept], *found.tokens]
            assert vocabulary.text(answer).startswith(before)
            continue
        bits = np.zeros(-(-size // 32), np.int32)
        matcher.allow(bits)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), count=size, bitorder="little"))
        if not len(allowed):
            assert matcher.error
            raise Cut(vocabulary.text(answer), matcher.error)
        ends = [token for token in vocabulary.library.eos_tokens if token in allowed]
        near = [token for token in allowed if closing[token]] if chance.random() < 0.4 else []
        token = int(chance.choice(near or [token for token in allowed if token not in ends] or ends))
        if token in ends or (ends and chance.random() < 0.4):
            break
        if len(answer) >= most:
            return None
        matcher.accept(token)
        answer.append(token)
    return vocabulary.text(answer).decode()


def answers(tokenizer: str, method: Method, constraint: Constraint, seed: int, count: int = 1) -> Iterator[str]:
    """Some that were not cut. Raises ConstraintRefused."""
    made = grammars(tokenizer, method)
    for number in range(count):
        text = drawn(made, made.matcher(constraint), random.Random(f"{method} {seed} {number}"))
        if text is not None:
            yield text


@cache
def _formats() -> jsonschema.FormatChecker:
    """Those of jsonschema, whose `time` is that of a former draft."""
    made = jsonschema.FormatChecker()

    @made.checks("time", ValueError)
    def time(value: object) -> bool:
        if not isinstance(value, str):
            return True
        found = re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)", value)
        return bool(found)

    @made.checks("date-time", ValueError)
    def date_time(value: object) -> bool:
        if not isinstance(value, str):
            return True
        date, clock = value[:10], value[11:]
        datetime.date.fromisoformat(date)
        return value[10:11] in ("T", "t") and time(clock)

    return made


def check_json(text: str, schema: Any) -> None:
    """Raise AssertionError if a text is not JSON by the schema, or has spaces that JSON does not need."""
    try:
        value = json.loads(text)
        jsonschema.Draft202012Validator(schema, format_checker=_formats()).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        raise AssertionError(f"{text!r} by {json.dumps(schema)}: {str(error).splitlines()[0]}") from None


def check_match(text: str, regex: str) -> None:
    """Raise AssertionError if a text does not match as a whole. Python may not know the newest digits of Unicode."""
    known = "".join("0" if unicodedata.category(letter) == "Cn" else letter for letter in text)
    assert re.fullmatch(regex, known), (text, regex)
