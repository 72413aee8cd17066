"""The systems: rows of this package, and entry points of the group `chunkbench.systems`, which others register."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from chunkbench.bench.registry import Registry
from chunkbench.workloads.serving.servers import chunk_llama, endpoint, vllm
from chunkbench.workloads.serving.servers.system import System

GROUP = "chunkbench.systems"


def _known() -> Mapping[str, EntryPoint | System]:
    found = {point.name: point for point in entry_points(group=GROUP)}
    ours = {**chunk_llama.SYSTEMS, **vllm.SYSTEMS, "endpoint": endpoint.Endpoint()}
    return dict(sorted((found | ours).items()))


SYSTEMS: Registry[System] = Registry(_known)
"""Systems of experiments of `kind: serving`."""
