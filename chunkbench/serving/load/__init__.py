"""The load: sends requests to any server that speaks OpenAI's protocol, and notes when what came back."""

from chunkbench.serving.load.answer import Tokens
from chunkbench.serving.load.client import LoadError, LoadOptions, LoadResult, ServerTarget, describe_server, send
from chunkbench.serving.load.metrics import cached_so_far

__all__ = [
    "LoadError",
    "LoadOptions",
    "LoadResult",
    "ServerTarget",
    "Tokens",
    "cached_so_far",
    "describe_server",
    "send",
]
