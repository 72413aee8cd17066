"""The Triton kernels over caches whose KV heads keep windows, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench import LayeredChunkAttention
from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels.query_rows import QueryRows
from chunkbench.kernels.triton.decode import TppTriton
from tests.attention.contexts import Contexts
from tests.attention.test_exact_windows import WindowContexts
from tests.attention.test_head_policy import HeadContexts
from tests.kernels.triton.test_decode import SMALL, Forest

FULL = ((True, False), (False, False))
"""Layers with one full head, and with none."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkbench.kernels.triton.decode.tuning_for", lambda *_: SMALL)


def grow_and_check(contexts: Contexts, steps: int) -> None:
    """Sequences that share a prefix, one that does not, a fork, a cut and a removal, while windows move."""
    for tokens in ([*range(90)], [*range(40), *range(200, 245)], [*range(300, 340)], [700]):
        contexts.add(tokens)
    contexts.attention.compress()
    contexts.check()
    for _ in range(steps):
        contexts.step()
    contexts.check()
    first, second, third, _ = contexts.tokens
    contexts.fork(second)
    contexts.truncate(first, len(contexts.tokens[first]) - 3)
    contexts.remove(third)
    contexts.step()
    contexts.check()


@pytest.mark.parametrize(
    "policy",
    [
        HeadPolicy(FULL, 20),
        HeadPolicy(FULL, 32, sinks=20, compensation="mean", compress="all"),
        HeadPolicy(FULL, 20, compensation="none", compress="all"),
    ],
    ids=["razor", "mean", "no compensation"],
)
def test_window_heads(device: str, policy: HeadPolicy) -> None:
    cache = LayeredChunkAttention(2, 4, 64, 2, 16, torch.float16, device, kernel="triton", policy=policy)
    grow_and_check(HeadContexts(cache), 18)


@pytest.mark.parametrize("window", [7, 33])
def test_exact_windows(device: str, window: int) -> None:
    policy = HeadPolicy.of_layers((True, False), 2, window)
    cache = LayeredChunkAttention(2, 6, 64, 2, 16, torch.bfloat16, device, kernel="triton", policy=policy)
    contexts = WindowContexts(cache)
    contexts.tolerance = {torch.bfloat16: 2e-2}  # type: ignore[misc]
    grow_and_check(contexts, 18)


def test_what_it_does_not_compute(device: str) -> None:
    options: dict[str, Any] = {"dtype": torch.float16, "device": device, "kernel": "triton"}
    with pytest.raises(ValueError, match="softcap: only kernel='native'"):
        LayeredChunkAttention(1, 2, 64, softcap=2.0, **options)
    forest = Forest(device, paths=[[*range(40)]])
    kernel, plan = TppTriton(forest.store, 2, tuning=SMALL), forest.tree.plan()
    with pytest.raises(ValueError, match="windows with one query row"):
        kernel.plan(plan, query_rows=QueryRows(np.array([2])), window=8)
    kernel.plan(plan)
    q = forest.normal(1, 2, 64)
    with pytest.raises(ValueError, match="without sinks"):
        kernel.decode(q, torch.empty_like(q), sinks=torch.zeros(2))


def test_launches_stay_right_when_rows_that_lost_tokens_leave(device: str) -> None:
    """They still compute compensation tokens, which no row has any more."""
    cache = LayeredChunkAttention(
        1, 2, 64, 2, 16, torch.float16, device, kernel="triton", policy=HeadPolicy(((False, False),), 20)
    )
    contexts = HeadContexts(cache)
    long, *_ = [contexts.add(path) for path in ([*range(120)], [200, 201], [300])]
    cache.compress()
    contexts.check()
    (kernel,) = cache._kernel._kernels[1].values()  # type: ignore[attr-defined]
    before = kernel.generation
    contexts.remove(long)
    contexts.check()
    assert kernel.generation == before
    assert kernel._means.lost.max() == -1


def test_heads_that_are_not_adjacent(device: str) -> None:
    policy = HeadPolicy(((True, False, True),), 20)
    grow_and_check(
        HeadContexts(LayeredChunkAttention(1, 3, 64, 3, 16, torch.float16, device, kernel="triton", policy=policy)), 2
    )
