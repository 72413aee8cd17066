"""The engine: iteration-level batching of any decoder-only model of transformers, with the prefix-aware cache."""

from chunkbench.server.engine.engine import Engine, EngineOptions, StepReport
from chunkbench.server.engine.errors import EngineError, ModelError, RequestFailed, RequestRefused
from chunkbench.server.engine.model import Model
from chunkbench.server.engine.request import Generated, Matcher, Request, Sampling

__all__ = [
    "Engine",
    "EngineError",
    "EngineOptions",
    "Generated",
    "Matcher",
    "Model",
    "ModelError",
    "Request",
    "RequestFailed",
    "RequestRefused",
    "Sampling",
    "StepReport",
]
