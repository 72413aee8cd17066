"""Why work cannot be done: what commands print, with the way out."""

from __future__ import annotations

from typing import Literal

Remedy = Literal[
    "resume",
    "resume or elsewhere",
    "elsewhere",
    "start again",
    "compare speed-ups",
    "name the common implementation",
    "ship or choose",
]


class RunError(ValueError):
    """A run cannot be created or used; the message says why and what to do.

    `remedy` names the solution, if the command line has an option for it.
    """

    def __init__(self, message: str, remedy: Remedy | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


class CannotRunError(RunError):
    """Nothing of an experiment can be measured on this machine; the message says why and what to do."""
