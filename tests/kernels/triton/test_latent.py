"""The Triton kernels over latents and over expanded K and V, against float64."""

from __future__ import annotations

from random import Random

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.attention.latent import LatentAttention
from chunkbench.kernels.latent import Projections
from chunkbench.kernels.planners import node_wise, two_phase
from chunkbench.latent import LatentShape
from tests.attention.latent_contexts import LatentContexts
from tests.kernels.triton.test_decode import SHARED_TREE, SMALL


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkbench.kernels.triton.decode.tuning_for", lambda *_: SMALL._replace(wide=16))


@pytest.mark.parametrize("heads", [3, 16, 20], ids=["few heads", "a full tile", "more heads than lanes"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 24))])
def test_caches_of_latents(device: str, heads: int, seed: int) -> None:
    """In all three forms, while sequences come, grow, are cut and leave."""
    chance = Random(100 * heads + seed)
    dtype, planner = chance.choice([torch.float16, torch.bfloat16]), chance.choice([two_phase, node_wise])
    contexts = LatentContexts(chance, heads, chance.choice([16, 32]), dtype, planner, seed, "triton", device)
    contexts.tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2}  # type: ignore[misc]
    for path in SHARED_TREE[: 3 + seed % 3]:
        contexts.add(path)
    contexts.step()
    contexts.check()
    first, second, *_ = contexts.tokens
    contexts.truncate(first, 30)
    contexts.remove(second)
    contexts.fork(first)
    for _ in range(chance.choice([1, 17])):
        contexts.step()
    contexts.check()


def test_shapes_that_it_does_not_support() -> None:
    def cache(dtype: torch.dtype = torch.float16, chunk_size: int = 16, **sizes: int) -> LatentAttention:
        shape = LatentShape(**{"kv_rank": 64, "rope": 16, "nope": 64, "v": 64} | sizes)
        weights = (torch.zeros(2, size, shape.kv_rank, dtype=dtype) for size in (shape.nope, shape.v))
        return LatentAttention(Projections(shape, *weights), chunk_size, kernel="triton")

    with pytest.raises(ValueError, match="float16 and bfloat16, not float32"):
        cache(torch.float32)
    with pytest.raises(ValueError, match="power of two from 16 tokens on, not 48"):
        cache(chunk_size=48)
    for wrong in ({"kv_rank": 96}, {"v": 128}, {"rope": 8}, {"nope": 32, "v": 32}):
        with pytest.raises(ValueError, match="kv_rank 64, 128, 256 or 512, rope 16, 32 or 64, and nope and v both"):
            cache(**wrong)
