"""Constrained answers by all methods and tokenizers: drawn constraints, against `jsonschema` and `re`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from tests.torture.hostile_constraints import choice, random_regex, random_schema, regex, schema
from tests.torture.trials import Harm, Part, Trial, Unavailable

CONSTRAINTS = 20
"""Of a trial, each followed by one method and one tokenizer."""


@contextmanager
def trials() -> Iterator[Harm]:
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


PART = Part(
    "constrained answers",
    "random and hostile schemas, expressions and choices by all methods; tokenizers that normalise, drop spaces, or are"
    " longer than the embedding",
    "an answer that ends is what was asked for by jsonschema and re; what cannot be followed is refused or fails with"
    " its reason",
    trials,
)
