"""`ChunkAttention` with the Triton kernel against float64, while sequences come, grow and leave."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.attention import ChunkAttention
from tests.attention.contexts import Contexts


def new_cache(device: str, **options: object) -> ChunkAttention:
    arguments = {"dtype": torch.float16, "kv_heads": 1, "chunk_size": 16, "kernel": "triton"} | options
    return ChunkAttention(2, 64, device=device, **arguments)  # type: ignore[arg-type]


def test_a_cache_without_sequences_can_be_planned(device: str) -> None:
    attention = new_cache(device)
    attention.plan()
    assert attention.work_items == 0


def test_add_append_fork_truncate_and_remove(device: str) -> None:
    contexts = Contexts(new_cache(device))
    for tokens in ([*range(40)], [*range(33), *range(200, 220)], [*range(32)], [700]):
        contexts.add(tokens)
    contexts.check()
    for step in range(18):
        contexts.append([1000 + 10 * step + row for row in range(len(contexts.tokens))])
    contexts.check()
    first, second, third, _ = contexts.tokens
    contexts.fork(second)
    contexts.check()
    contexts.truncate(first, 37)
    contexts.remove(third)
    contexts.check()


def test_auto_chooses_triton_on_a_gpu_and_wrong_shapes_are_refused(device: str) -> None:
    assert new_cache(device, kernel="auto").kernel == ("triton" if device == "cuda" else "native")
    with pytest.raises(ValueError, match="float16 and bfloat16, not float32"):
        new_cache(device, dtype=torch.float32)
    with pytest.raises(ValueError, match="power of two from 16"):
        new_cache(device, chunk_size=48)
    with pytest.raises(ValueError, match="head dimensions of 64, 128 and 256, not 80"):
        ChunkAttention(2, 80, dtype=torch.float16, device=device, kernel="triton")
    with pytest.raises(ValueError, match="at most 64 query heads per KV head"):
        ChunkAttention(130, 64, kv_heads=1, dtype=torch.float16, device=device, kernel="triton")


def test_without_a_gpu_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="it runs on an NVIDIA GPU, not on cpu"):
        new_cache("cpu")
