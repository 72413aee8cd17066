"""The constraints that a client can put on an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

Kind = Literal["regex", "json", "choice"]
MOST_CHARACTERS = 1 << 16
"""Maximum number of characters of the text of a constraint."""


class ConstraintRefused(ValueError):
    """The constraint cannot be followed; the message says why."""


@dataclass(frozen=True)
class Constraint:
    """A rule for an answer: a regular expression, a JSON schema, or a list of texts from which the answer is chosen."""

    kind: Kind
    text: str
    """The regular expression. For a schema or a list of choices: its JSON."""

    def __post_init__(self) -> None:
        if len(self.text) > MOST_CHARACTERS:
            raise ConstraintRefused(f"it has {len(self.text)} characters: this server takes at most {MOST_CHARACTERS}")

    @classmethod
    def of_regex(cls, regex: str) -> Constraint:
        """The answer must match this regular expression. Raises ConstraintRefused."""
        return cls("regex", regex)

    @classmethod
    def of_schema(cls, schema: Any) -> Constraint:
        """The answer must follow this JSON schema: an object, true, or JSON text of one. Raises ConstraintRefused."""
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
        """The answer must be one of these texts. Raises ConstraintRefused."""
        if not texts or not all(texts):
            raise ConstraintRefused("a choice needs at least one text, and no text may be empty")
        return cls("choice", json.dumps(texts))


ANY_OBJECT = Constraint.of_schema({"type": "object"})
"""The answer must be a JSON object, with any fields."""
