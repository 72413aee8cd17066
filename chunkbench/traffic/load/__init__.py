"""Sends requests to a server that speaks OpenAI's protocol, and records the answers and their times."""

from chunkbench.traffic.load.answer import Tokens
from chunkbench.traffic.load.client import LoadError, LoadOptions, LoadResult, ServerTarget, describe_server, send
from chunkbench.traffic.load.metrics import cached_so_far

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
