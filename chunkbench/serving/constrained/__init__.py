"""Answers that follow a regular expression, a JSON schema or a choice: which tokens may come next, and which must."""

from chunkbench.serving.constrained.constraint import Constraint, ConstraintRefused
from chunkbench.serving.constrained.grammars import Grammars
from chunkbench.serving.constrained.matchers import Matcher, Method

__all__ = ["Constraint", "ConstraintRefused", "Grammars", "Matcher", "Method"]
