"""Answers that follow a regular expression, a JSON schema or a choice: decides which tokens may or must come next."""

from chunkbench.server.constrained.constraint import Constraint, ConstraintRefused
from chunkbench.server.constrained.grammars import Grammars
from chunkbench.server.constrained.matchers import Matcher, Method

__all__ = ["Constraint", "ConstraintRefused", "Grammars", "Matcher", "Method"]
