"""`ChunkAttention` with the Triton kernel against float64, while sequences come, grow and leave."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.attention import ChunkAttention
from chunkbench.kernels.reference import attention


def new_cache(device: str, **options: object) -> ChunkAttention:
    arguments = {"dtype": torch.float16, "kv_heads": 1, "chunk_size": 16, "kernel": "triton"} | options
    return ChunkAttention(2, 64, device=device, **arguments)  # type: ignore[arg-type]


class Contexts:
    """The attention under test, and the tokens of each sequence. `values` holds K and V of each token."""

    def __init__(self, device: str) -> None:
        self.attention = new_cache(device)
        self.values = torch.randn(2, 4096, 1, 64, generator=torch.Generator().manual_seed(1)).half().to(device)
        self.tokens: dict[int, list[int]] = {}

    def kv(self, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of some tokens; they depend only on the token id."""
        return self.values[0, tokens], self.values[1, tokens]

    def check(self) -> None:
        live = self.attention.sequences
        q = torch.randn(len(live), 2, 64, device=self.values.device).half()
        out = self.attention.decode(q).double()
        expected = torch.stack([attention(q[row], *self.kv(self.tokens[s])) for row, s in enumerate(live)])
        assert ((out - expected).abs().max() / expected.abs().max()).item() < 4e-3


def test_a_cache_without_sequences_can_be_planned(device: str) -> None:
    attention = new_cache(device)
    attention.plan()
    assert attention.work_items == 0


def test_add_append_fork_truncate_and_remove(device: str) -> None:
    contexts = Contexts(device)
    cache = contexts.attention
    for tokens in ([*range(40)], [*range(33), *range(200, 220)], [*range(32)], [700]):
        contexts.tokens[cache.add_sequence(tokens, *contexts.kv(tokens))] = tokens
    contexts.check()
    for step in range(18):
        ids = [1000 + 10 * step + row for row in range(len(contexts.tokens))]
        cache.append(ids, *contexts.kv(ids))
        contexts.tokens = {s: [*tokens, new] for (s, tokens), new in zip(contexts.tokens.items(), ids, strict=True)}
    contexts.check()
    twin = cache.fork(cache.sequences[1])
    contexts.tokens[twin] = [*contexts.tokens[cache.sequences[1]]]
    contexts.check()
    cache.truncate(cache.sequences[0], 37)
    contexts.tokens[cache.sequences[0]] = contexts.tokens[cache.sequences[0]][:37]
    removed = cache.sequences[2]
    cache.remove_sequence(removed)
    del contexts.tokens[removed]
    contexts.check()


def test_auto_chooses_triton_on_a_gpu_and_wrong_shapes_are_refused(device: str) -> None:
    assert new_cache(device, kernel="auto").kernel == ("triton" if device == "cuda" else "native")
    with pytest.raises(ValueError, match="float16 and bfloat16, not float32"):
        new_cache(device, dtype=torch.float32)
    with pytest.raises(ValueError, match="power of two from 16"):
        new_cache(device, chunk_size=48)
    with pytest.raises(ValueError, match="head dimensions of 64, 128 and 256, not 80"):
        ChunkAttention(2, 80, dtype=torch.float16, device=device, kernel="triton")
    with pytest.raises(ValueError, match="64 query heads of a KV head at most"):
        ChunkAttention(130, 64, kv_heads=1, dtype=torch.float16, device=device, kernel="triton")


def test_without_a_gpu_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="it runs on an NVIDIA GPU, not on cpu"):
        new_cache("cpu")
