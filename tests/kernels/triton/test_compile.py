"""The kernels compile for the GPUs of the tuning table, spill nothing, and fit as often as the planner assumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed")

_BUILD = """
import json, sys
from chunkbench.kernels.triton.compile import build
from chunkbench.kernels.triton.tuning import read
kernels = []
for generation, rows in read().items():
    number = int(generation.removeprefix("sm_"))
    for head_dim, tuning in rows.items():
        shapes = [(32, 32, 64), (32, 8, 64), (32, 1, 64)]
        shapes += [(32, 4, 64), (64, 1, 64), (32, 32, 16), (32, 32, 128)] if head_dim == 128 else []
        if sys.argv[1] == "few":
            shapes = shapes[:1] if head_dim == 128 else []
        for heads, kv_heads, chunk in shapes:
            dtype = "bf16" if kv_heads == 8 else "fp16"
            for built in build(number, dtype, heads, kv_heads, head_dim, chunk, tuning):
                case = {"generation": number, "head_dim": head_dim, "kv_heads": kv_heads, "chunk": chunk}
                assumed = tuning.narrow_blocks if built.kernel.endswith("narrow") else tuning.blocks
                fit = {"blocks": built.blocks(number), "assumed": assumed}
                kernels.append(case | built._asdict() | fit)
print(json.dumps(kernels))
"""


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.slow)])
def built(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Compiles in another process, because this process may use Triton's interpreter. A shape takes three seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", _BUILD, request.param], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    kernels: list[dict[str, Any]] = json.loads(ran.stdout)
    return kernels


@pytest.mark.timeout(600)
def test_kernels_compile_for_all_generations(built: list[dict[str, Any]]) -> None:
    assert {kernel["generation"] for kernel in built} >= {80, 86, 90, 120}
    assert {kernel["head_dim"] for kernel in built} in ({128}, {64, 128, 256})


def test_nothing_is_spilled(built: list[dict[str, Any]]) -> None:
    """Exception: a word or two outside the loop, if 32 heads share a KV head."""
    exceptions = [kernel for kernel in built if kernel["kv_heads"] < 4]
    assert [
        " ".join(map(str, kernel.values())) for kernel in built if kernel["stack_bytes"] and kernel not in exceptions
    ] == []
    assert [" ".join(map(str, kernel.values())) for kernel in exceptions if kernel["stack_bytes"] > 8] == []


def test_as_many_blocks_fit_as_the_planner_assumes(built: list[dict[str, Any]]) -> None:
    partial = [kernel for kernel in built if kernel["kernel"].startswith("partial")]
    equal_heads = [kernel for kernel in partial if kernel["kv_heads"] == 32 and kernel["chunk"] == 64]
    assert {kernel["kernel"] for kernel in equal_heads} == {"partial_results wide", "partial_results narrow"}
    assert [kernel for kernel in equal_heads if kernel["blocks"] != kernel["assumed"]] == []
    # Another shape may need a little more, so that one block less fits. Wide groups also fill the small tile.
    usual = [kernel for kernel in partial if kernel["kv_heads"] >= 4]
    assert [kernel for kernel in usual if kernel["blocks"] < kernel["assumed"] - 1] == []


def test_keys_and_values_are_loaded_ahead(built: list[dict[str, Any]]) -> None:
    """A block has several tiles of K and V in flight, or several blocks of a multiprocessor have one each."""
    partial = [kernel for kernel in built if kernel["kernel"].startswith("partial")]
    assert [kernel for kernel in partial if not kernel["asynchronous_loads"]] == []
    assert [kernel for kernel in partial if kernel["ahead"] < 2 and kernel["blocks"] < 3] == []
