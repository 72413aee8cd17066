"""Errors of the engine."""

from __future__ import annotations


class EngineError(Exception):
    """Base class of all errors of the engine."""


class ModelError(EngineError, ValueError):
    """The model cannot be loaded, or its attention needs something that the kernels do not have."""


class RequestRefused(EngineError, ValueError):
    """A request that the engine can never answer: too long, empty, or with a field out of range."""

    def __init__(self, message: str, field: str = "prompt") -> None:
        """`field`: what of the request is wrong, by its name in OpenAI's API."""
        super().__init__(message)
        self.field = field


class RequestFailed(EngineError):
    """The engine could not go on with a request. It goes on with the others."""

    def __init__(self, request: str, message: str, asked: bool = False) -> None:
        """`asked`: the cause is what the client asked for, and no fault of the engine."""
        super().__init__(message)
        self.request = request
        self.asked = asked
