"""Answers that follow a regular expression, a JSON schema or a choice: which tokens may come next, and which must."""

from chunkbench.server.constrained.constraint import Constraint, ConstraintRefused
from chunkbench.server.constrained.grammars import Grammars
from chunkbench.server.constrained.matchers import Matcher, Method

__all__ = ["Constraint", "ConstraintRefused", "Grammars", "Matcher", "Method"]
