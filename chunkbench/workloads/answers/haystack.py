"""Contexts for the needle test. A needle is a sentence with a key and a value, hidden among sentences of the project's
own texts.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources

NEEDLES = 10
_TEXTS = "questions.jsonl"
_NAMES = (
    *("Amelia", "Bruno", "Clara", "Dmitri", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas"),
    *("Karin", "Lorenzo", "Mirela", "Nadim", "Olga", "Pablo", "Quentin", "Rosa", "Stefan", "Teresa"),
)
_KEYS = (
    *("The code of {} is", "{} keeps the key in box", "The parcel of {} has number", "The locker of {} opens with"),
    *("{} parks the car at place", "The flat of {} has number", "The ticket of {} ends with", "{} signs letters with"),
    *("The telephone of {} begins with", "The account of {} ends in"),
)
_DIGITS = 5


@dataclass(frozen=True)
class Haystack:
    """A context with needles, as token ids. The needles have equal distances. The first one comes after a twentieth of
    the context.
    """

    context: list[int]
    questions: list[list[int]]
    """The key of each needle, in the order of the needles."""
    values: list[str]
    """The value of each needle: a correct answer begins with it."""
    held: list[int]
    """Token ids of the text that follows the context."""


def haystack(encode: Callable[[str], list[int]], tokens: int, held: int, seed: int) -> Haystack:
    """Make a context of `tokens` tokens, and `held` tokens of text after it. Raises ValueError if the texts are too
    short.
    """
    rng = random.Random(f"haystack {seed}")
    keys = [key.format(name) for key, name in zip(rng.sample(_KEYS, NEEDLES), rng.sample(_NAMES, NEEDLES), strict=True)]
    values = ["".join(rng.choice("0123456789") for _ in range(_DIGITS)) for _ in keys]
    needles = [encode(f" {key} {value}.") for key, value in zip(keys, values, strict=True)]
    places = [round((2 * number + 1) / (2 * NEEDLES) * tokens) for number in range(NEEDLES)]
    sentences = _sentences(rng)
    context: list[int] = []
    for place, needle in zip([*places, tokens], [*needles, []], strict=True):
        while len(context) < place - len(needle) - 40 or (not needle and len(context) < tokens):
            context += encode(_next(sentences, tokens))
        context += needle
    after: list[int] = []
    while len(after) < held:
        after += encode(_next(sentences, tokens))
    questions = [encode(f"\n\n{key}") for key in keys]
    return Haystack(context[:tokens], questions, values, after[:held])


def _sentences(rng: random.Random) -> Iterator[str]:
    """The different sentences of all texts, in random order."""
    found = []
    texts = resources.files("chunkbench.experiments") / "texts" / _TEXTS
    for line in texts.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        texts_of = [message["content"] for message in values.get("messages", [])] + [values.get("text", "")]
        found += [sentence.strip() for text in texts_of for sentence in re.split(r"(?<=[.?!])\s+|\n", text)]
    distinct = sorted({sentence for sentence in found if len(sentence) > 20})
    rng.shuffle(distinct)
    return (f" {sentence}" for sentence in distinct)


def _next(sentences: Iterator[str], tokens: int) -> str:
    try:
        return next(sentences)
    except StopIteration:
        raise ValueError(f"{_TEXTS} is too short for a context of {tokens} tokens") from None
