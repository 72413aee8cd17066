"""Invented facts with small numbers, so that results can be computed by hand."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from chunkbench.bench.store.results import DecodeResult, Peaks

AXES: dict[str, Any] = {
    "n_p": 1024,
    "n_s": 512,
    "n_c": 64,
    "batch_size": 32,
    "heads": 32,
    "kv_heads": 32,
    "head_dim": 128,
    "chunk_size": 64,
    "block_size": 32,
    "prompts": 1,
    "tree": None,
    "dtype": "bfloat16",
    "device": "cpu",
    "protocol": "strict",
    "cache": "cold",
    "mode": "eager",
}
"""The second row of Table 3."""


class MakeFacts(Protocol):
    def __call__(self, implementation: str = ..., **changes: Any) -> DecodeResult: ...


@pytest.fixture
def facts() -> MakeFacts:
    def make(implementation: str = "chunk_attn", **changes: Any) -> DecodeResult:
        """Facts with two timed steps per round; every entry of `samples_us` is a round with a group and peaks."""
        samples = changes.get("samples_us", ((10.0, 20.0),) * 3)
        rounds, steps = len(samples), len(changes.get("steps", (1, 64)))
        values: dict[str, Any] = {
            "key": f"{implementation} {sorted(changes.items(), key=repr)}",
            "experiment": "invented",
            "implementation": implementation,
            "label": implementation,
            **AXES,
            "status": "ok",
            "samples_us": samples,
            "steps": (1, 64),
            "append_samples_us": ((1.0, 3.0),) * rounds,
            "plan_samples_us": ((0.5, 0.5),) * rounds,
            "groups": (0,) * rounds,
            "peaks": (Peaks(read_bytes_per_s=1e9, matrix_flops_per_s=1e12, matrix_torch_flops_per_s=1e12),) * rounds,
            "unique_bytes": (6000, 9000)[:steps],
            "read_bytes": (9000, 12000)[:steps],
            "flops": (1000, 1000)[:steps],
        }
        return DecodeResult(**(values | changes))

    return make
