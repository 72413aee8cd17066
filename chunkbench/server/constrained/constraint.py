"""Constraints on answers, in the forms that clients send."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

Kind = Literal["regex", "json", "choice"]
MOST_CHARACTERS = 1 << 16
"""Maximum number of characters of a constraint."""


class ConstraintRefused(ValueError):
    """The constraint cannot be followed; the message says why."""


@dataclass(frozen=True)
class Constraint:
    """A constraint on an answer: a regular expression, a JSON schema, or a list of texts of which the answer must be
    one."""

    kind: Kind
    text: str
    """The regular expression, or JSON of the schema or of the list of choices."""

    def __post_init__(self) -> None:
        if len(self.text) > MOST_CHARACTERS:
            raise ConstraintRefused(f"it has {len(self.text)} characters: this server takes at most {MOST_CHARACTERS}")

    @classmethod
    def of_regex(cls, regex: str) -> Constraint:
        """The constraint that the answer matches a regular expression. Raises ConstraintRefused."""
        return cls("regex", regex)

    @classmethod
    def of_schema(cls, schema: Any) -> Constraint:
        """The constraint that the answer follows a JSON schema (an object or true, also as JSON text). Raises
        ConstraintRefused."""
        if isinstance(schema, str):
            try:
                schema = from_json(schema, allow_inf_nan=False)  # with a limit of depth
            except (TypeError, ValueError) as error:  # TypeError comes from half a surrogate pair
                raise ConstraintRefused(f"the schema is not JSON: {error}") from None
        if not isinstance(schema, dict | bool):
            raise ConstraintRefused(f"the schema must be an object, not {type(schema).__name__}")
        return cls("json", json.dumps(schema))

    @classmethod
    def of_choice(cls, texts: list[str]) -> Constraint:
        """The constraint that the answer is one of these texts. Raises ConstraintRefused."""
        if not texts or not all(texts):
            raise ConstraintRefused("a choice needs at least one text, and no text may be empty")
        return cls("choice", json.dumps(texts))


ANY_OBJECT = Constraint.of_schema({"type": "object"})
"""The constraint that the answer is a JSON object with any fields."""
