"""`ChunkAttention` on the Triton kernel: the same answers whatever happens to the sequences."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.attention import ChunkAttention
from chunkbench.kernels.reference import attention


def made(device: str, **options: object) -> ChunkAttention:
    chosen = {"dtype": torch.float16, "kv_heads": 1, "chunk_size": 16, "kernel": "triton"} | options
    return ChunkAttention(2, 64, device=device, **chosen)  # type: ignore[arg-type]


class Held:
    """The attention under test and each sequence's tokens, K and V."""

    def __init__(self, device: str) -> None:
        self.attention = made(device)
        self.values = torch.randn(2, 4096, 1, 64, generator=torch.Generator().manual_seed(1)).half().to(device)
        self.tokens: dict[int, list[int]] = {}

    def kv(self, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Values that depend on the token alone."""
        return self.values[0, tokens], self.values[1, tokens]

    def check(self) -> None:
        live = self.attention.sequences
        q = torch.randn(len(live), 2, 64, device=self.values.device).half()
        out = self.attention.decode(q).double()
        expected = torch.stack([attention(q[row], *self.kv(self.tokens[s])) for row, s in enumerate(live)])
        assert ((out - expected).abs().max() / expected.abs().max()).item() < 4e-3


def test_a_cache_without_sequences_can_be_planned(device: str) -> None:
    attention = made(device)
    attention.plan()
    assert attention.work_items == 0


def test_join_append_fork_truncate_and_leave(device: str) -> None:
    held = Held(device)
    cache = held.attention
    for tokens in ([*range(40)], [*range(33), *range(200, 220)], [*range(32)], [700]):
        held.tokens[cache.add_sequence(tokens, *held.kv(tokens))] = tokens
    held.check()
    for step in range(18):
        ids = [1000 + 10 * step + row for row in range(len(held.tokens))]
        cache.append(ids, *held.kv(ids))
        held.tokens = {s: [*tokens, new] for (s, tokens), new in zip(held.tokens.items(), ids, strict=True)}
    held.check()
    twin = cache.fork(cache.sequences[1])
    held.tokens[twin] = [*held.tokens[cache.sequences[1]]]
    held.check()
    cache.truncate(cache.sequences[0], 37)
    held.tokens[cache.sequences[0]] = held.tokens[cache.sequences[0]][:37]
    gone = cache.sequences[2]
    cache.remove_sequence(gone)
    del held.tokens[gone]
    held.check()


def test_auto_takes_it_on_a_gpu_and_the_shape_decides(device: str) -> None:
    assert made(device, kernel="auto").kernel == ("triton" if device == "cuda" else "native")
    with pytest.raises(ValueError, match="float16 and bfloat16, not float32"):
        made(device, dtype=torch.float32)
    with pytest.raises(ValueError, match="power of two from 16"):
        made(device, chunk_size=48)
    with pytest.raises(ValueError, match="head dimensions of 64, 128 and 256, not 80"):
        ChunkAttention(2, 80, dtype=torch.float16, device=device, kernel="triton")
    with pytest.raises(ValueError, match="64 query heads of a KV head at most"):
        ChunkAttention(130, 64, kv_heads=1, dtype=torch.float16, device=device, kernel="triton")


def test_it_says_that_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="it runs on an NVIDIA GPU, not on cpu"):
        made("cpu")
