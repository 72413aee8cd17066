"""Errors of the engine."""

from __future__ import annotations


class EngineError(Exception):
    """Base class of all errors of the engine."""


class ModelError(EngineError, ValueError):
    """The model cannot be loaded, or its attention needs something that the kernels do not have."""


class RequestRefused(EngineError, ValueError):
    """A request that the engine can never answer: too long, empty, or with token ids that the model lacks."""
