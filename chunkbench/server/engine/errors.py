"""Errors of the engine."""

from __future__ import annotations


class EngineError(Exception):
    """Base class of all errors of the engine."""


class ModelError(EngineError, ValueError):
    """The model cannot be loaded, or its attention needs something that the kernels do not have."""


class RequestRefused(EngineError, ValueError):
    """The engine can never answer this request: it is empty or too long, or a field is out of range."""

    def __init__(self, message: str, field: str = "prompt") -> None:
        """`field`: name of the request's field whose value is wrong."""
        super().__init__(message)
        self.field = field


class RequestFailed(EngineError):
    """The engine could not finish one request. The other requests continue."""

    def __init__(self, request: str, message: str, asked: bool = False) -> None:
        """`asked`: True if the client caused the failure, False for a fault of the engine."""
        super().__init__(message)
        self.request = request
        self.asked = asked
