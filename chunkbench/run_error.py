"""Errors that say why work cannot be done, with a remedy. Commands print them."""

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
    """A run cannot be created or used. The message says why, and what to do.

    `remedy` names a solution for which the command line has options. None: no option solves the problem.
    """

    def __init__(self, message: str, remedy: Remedy | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


class CannotRunError(RunError):
    """No case of an experiment can be measured on this machine. The message says why, and what to do."""
