"""Compares every implementation that can run here with the float64 reference; uses only the contract."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from chunkbench.baselines.registry import REGISTRY, UnknownImplementation
from chunkbench.experiment.point import Point
from chunkbench.experiment.timed import TOLERANCE
from chunkbench.workers.checks import make_check
from chunkbench.workers.inputs import PooledInputs
from chunkbench.workers.storages import visible_bytes

DEFAULTS: dict[str, Any] = {
    "n_p": 70,
    "n_s": 40,
    "n_c": 20,
    "batch_size": 4,
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 64,
    "chunk_size": 16,
    "block_size": 32,
    "dtype": "float32",
    "device": "cpu",
}
POINTS: dict[str, dict[str, Any]] = {
    "part shared": {},
    "nothing shared": {"n_s": 0},
    "everything shared": {"n_s": 70},
    "one sequence": {"batch_size": 1},
    "grouped heads": {"kv_heads": 2},
    "one KV head": {"kv_heads": 1, "batch_size": 3},
    "prompt shorter than a chunk": {"n_p": 5, "n_s": 3},
    "two prompts": {"prompts": 2},
    "tree": {"n_s": None, "n_p": 64, "tree": ((32, ((16, 2), (20, 1))), (48, 1))},
    "ragged": {"n_p": (50, 90)},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "small blocks": {"block_size": 16, "chunk_size": 64},
    "head of 128": {"head_dim": 128, "heads": 2, "kv_heads": 1},
}


@pytest.mark.parametrize("axes", POINTS.values(), ids=POINTS.keys())
@pytest.mark.parametrize("name", REGISTRY.names())
def test_decode_agrees_with_float64_at_every_step_and_after_rewinding(name: str, axes: dict[str, Any]) -> None:
    implementation = REGISTRY.load(name)
    answer = implementation.availability("cpu")
    if not answer.ok:
        pytest.skip(answer.reason)
    point = Point.model_validate(DEFAULTS | axes)
    if not implementation.supports(point).ok:
        pytest.skip(implementation.supports(point).reason)
    inputs = PooledInputs(point, seed=1)
    session = implementation.prepare(inputs)
    out = torch.empty(point.batch_size, point.heads, point.head_dim, dtype=getattr(torch, point.dtype))
    for attempt in range(2):
        session.rewind()
        for step in range(1, point.n_c + 1):
            session.append(*inputs.completion(step))
            session.plan()
            if step in (1, 2, 16, 20):
                check = make_check(inputs, step, nonce=100 * attempt + step)
                out.fill_(float("nan"))
                session.decode(check.q, out)
                assert check.max_error(out) < TOLERANCE[point.dtype], f"step {step}"
    distinct = point.unique_prompt_tokens(1) + point.n_c * point.batch_size
    # Zero: a library holds its tensors where Python cannot see them.
    assert distinct * point.token_bytes <= session.kv_bytes() <= (visible_bytes(session) or math.inf)


@pytest.mark.parametrize("name", REGISTRY.names())
def test_an_implementation_with_shares_storage_holds_a_shared_prefix_once(name: str) -> None:
    implementation = REGISTRY.load(name)
    if not implementation.availability("cpu").ok:
        pytest.skip("unavailable")
    point = Point.model_validate(DEFAULTS | {"n_p": 320, "n_s": 320, "batch_size": 8, "n_c": 2})
    held = implementation.prepare(PooledInputs(point, seed=1)).kv_bytes() / point.token_bytes
    if implementation.shares_storage:
        assert held < 2 * 320
    else:
        assert held >= 8 * 320


def test_an_unavailable_implementation_gives_a_reason_and_a_remedy() -> None:
    for surveyed in REGISTRY.survey("cpu"):
        if not surveyed.answer.ok:
            assert surveyed.answer.reason
    xformers = {s.id: s.answer for s in REGISTRY.survey("cpu")}["xformers"]
    assert (xformers.ok, xformers.reason) == (False, "xformers has no CPU operator")
    assert "NVIDIA GPU" in xformers.remedy


def test_the_error_for_an_unknown_name_suggests_a_close_one() -> None:
    with pytest.raises(UnknownImplementation, match="did you mean chunk_attn"):
        REGISTRY.load("chunk_atn")
