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
import itertools, json
from chunkbench.kernels.triton.compile import build
from chunkbench.kernels.triton.tuning import read
found = []
for generation, rows in read().items():
    number = int(generation.removeprefix("sm_"))
    for head_dim, tuning in rows.items():
        shapes = [(32, 32, 64), (32, 8, 64), (32, 1, 64)]
        shapes += [(32, 4, 64), (64, 1, 64), (32, 32, 16), (32, 32, 128)] if head_dim == 128 else []
        for (heads, kv_heads, chunk), in_place in itertools.product(shapes, (False, True)):
            if in_place and (chunk, head_dim) != (64, 128):
                continue
            dtype = "bf16" if kv_heads == 8 else "fp16"
            for built in build(number, dtype, heads, kv_heads, head_dim, chunk, tuning._replace(in_place=in_place)):
                where = {"generation": number, "head_dim": head_dim, "kv_heads": kv_heads, "chunk": chunk}
                assumed = tuning.narrow_blocks if built.kernel.endswith("narrow") else tuning.blocks
                fits = {"in_place": in_place, "blocks": built.blocks(number), "assumed": assumed}
                found.append(where | built._asdict() | fits)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def built() -> list[dict[str, Any]]:
    """In a process of its own: here the interpreter has been chosen."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, "-c", _BUILD], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


@pytest.mark.timeout(600)
def test_for_both_generations(built: list[dict[str, Any]]) -> None:
    assert {one["generation"] for one in built} >= {80, 90}
    assert {one["head_dim"] for one in built} == {64, 128, 256}


def test_nothing_is_spilled(built: list[dict[str, Any]]) -> None:
    """But for a word or two outside the loop, where the merge shares its registers or 32 heads share a KV head."""
    hard = [one for one in built if one["in_place"] or one["kv_heads"] < 4]
    assert [" ".join(map(str, one.values())) for one in built if one["stack_bytes"] and one not in hard] == []
    assert [" ".join(map(str, one.values())) for one in hard if one["stack_bytes"] > 8] == []


def test_as_many_blocks_fit_as_the_planner_assumes(built: list[dict[str, Any]]) -> None:
    partial = [one for one in built if one["kernel"].startswith("partial") and not one["in_place"]]
    equal_heads = [one for one in partial if one["kv_heads"] == 32 and one["chunk"] == 64]
    assert {one["kernel"] for one in equal_heads} == {"partial_results wide", "partial_results narrow"}
    assert [one for one in equal_heads if one["blocks"] != one["assumed"]] == []
    # Another shape may take a little more, and a block less fits; wide groups fill the small tile as well.
    usual = [one for one in partial if one["kv_heads"] >= 4]
    assert [one for one in usual if one["blocks"] < one["assumed"] - 1] == []


def test_keys_and_values_are_loaded_ahead(built: list[dict[str, Any]]) -> None:
    partial = [one for one in built if one["kernel"].startswith("partial")]
    assert [one for one in partial if not one["asynchronous_loads"] or one["ahead"] < 2] == []
