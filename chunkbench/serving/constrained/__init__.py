"""Answers that follow a regular expression, a JSON schema or a choice: which tokens may come next."""

from chunkbench.serving.constrained.constraint import Constraint, ConstraintRefused
from chunkbench.serving.constrained.grammars import Grammars

__all__ = ["Constraint", "ConstraintRefused", "Grammars"]
