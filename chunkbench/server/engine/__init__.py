"""The engine: runs decoder-only models of transformers over the prefix-aware cache, with iteration-level batching."""

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
