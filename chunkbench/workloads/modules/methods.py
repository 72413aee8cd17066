"""The registry of the modules of a decoder layer."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from chunkbench.bench.contract import AnyImplementation
from chunkbench.bench.registry import Registry

_CLASSES = {"qkv_projection": "QkvProjection", "self_attention": "SelfAttention", "mlp": "Mlp"}

MODULES: Registry[AnyImplementation] = Registry(
    {
        name: EntryPoint(name, f"chunkbench.workloads.modules.implementations:{kind}", "chunkbench.modules")
        for name, kind in _CLASSES.items()
    }
)
