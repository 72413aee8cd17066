"""Makes answers follow a regular expression, a JSON schema or a list of choices: decides which tokens may come next."""

from chunkbench.server.constrained.constraint import Constraint, ConstraintRefused
from chunkbench.server.constrained.grammars import Grammars
from chunkbench.server.constrained.matchers import Matcher, Method

__all__ = ["Constraint", "ConstraintRefused", "Grammars", "Matcher", "Method"]
