"""Registers the systems: those of this package, and those that other packages provide by entry points of the group
`chunkbench.systems`."""

from __future__ import annotations

from chunkbench.bench.registry import Registry
from chunkbench.workloads.serving.servers import chunk_llama, endpoint, llama_cpp, vllm
from chunkbench.workloads.serving.servers.system import System

GROUP = "chunkbench.systems"

SYSTEMS: Registry[System] = Registry(
    {
        **chunk_llama.SYSTEMS,
        **vllm.SYSTEMS,
        **llama_cpp.SYSTEMS,
        "endpoint": endpoint.Endpoint(),
    },
    GROUP,
)
"""All systems that experiments of `kind: serving` can name."""
