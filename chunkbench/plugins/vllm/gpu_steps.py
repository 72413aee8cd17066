"""Attention of decoded tokens on an NVIDIA GPU, over K and V in vLLM's blocks and in vLLM's layout."""

from __future__ import annotations

import numpy as np
import torch

from chunkbench.kernels.integers import Ints
from chunkbench.kernels.query_rows import QueryRows
from chunkbench.kernels.triton.constants import PLACE_BYTES, Sizes
from chunkbench.kernels.triton.decode import TppTriton
from chunkbench.kernels.triton.staging import Staging
from chunkbench.kernels.triton.tuning import Tuning
from chunkbench.plugins.vllm.forest import BlockForest


class BlockPlaces:
    """Tells the kernels where vLLM's blocks lie in the K/V cache of each layer. The interface is `Places`."""

    def __init__(self, cache: torch.Tensor) -> None:
        """`cache` `[blocks, kv_heads, tokens, 2 * head_dim]`: for each token its K, then its V. All strides except the
        last are free, but must be the same in the caches of all layers."""
        _, kv_heads, tokens, width = cache.shape
        block_step, head_step, token_step, last = cache.stride()
        self._block_step = block_step * cache.dtype.itemsize // PLACE_BYTES
        if last != 1 or self._block_step * PLACE_BYTES != block_step * cache.dtype.itemsize:
            raise ValueError(f"blocks must begin at multiples of {PLACE_BYTES} bytes; the strides are {cache.stride()}")
        self.sizes = Sizes(kv_heads, kv_heads, width // 2, tokens, cache.dtype, token_step, head_step)
        self.device = cache.device
        self._ends = Staging(self.device, 0)

    @property
    def tokens(self) -> torch.Tensor:
        return self._ends.device

    def places(self, chunks: Ints) -> tuple[Ints, Ints]:
        places = chunks * self._block_step
        return places, places

    def reserve_rows(self, rows: int) -> None:
        if rows > len(self._ends.host):
            self._ends = Staging(self.device, rows)

    def follow(self, chunks: Ints, tokens: Ints) -> None:
        self.reserve_rows(len(tokens))
        self._ends.host[: len(tokens)] = tokens
        self._ends.send()

    def layer(self, layer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of the layer with this cache."""
        return layer, layer[..., self.sizes.head_dim :]


class DecodeSteps:
    """Plans the decoding rows of each step, and computes their attention in all layers with the same block table.

    A captured CUDA graph of `attend` can also compute later steps. It becomes invalid when `generation` changes.
    """

    def __init__(
        self,
        cache: torch.Tensor,
        heads: int,
        rows: int,
        blocks: int,
        tuning: Tuning | None = None,
        drafted: bool = False,
    ) -> None:
        """`cache`: the K/V cache of any layer. `heads`: number of query heads. `rows`: maximum number of rows of a
        step. `blocks`: maximum number of blocks that these rows hold; a shared block counts once. `drafted`: whether
        sequences may have several rows, those of a draft."""
        places = BlockPlaces(cache)
        self._forest = BlockForest(places.sizes.chunk_size)
        self._kernel = TppTriton(places, heads, tuning=tuning)
        # A row's own run has room to grow (8 chunks), so entries are needed for more chunks than there are blocks.
        self._kernel.reserve(rows, max(blocks, 8 * rows), drafts="chains" if drafted else "none")

    @property
    def generation(self) -> int:
        """A number that changes when captured graphs become invalid."""
        return self._kernel.generation

    def plan(self, table: np.ndarray, lengths: Ints, counts: Ints | None = None) -> None:
        """Plan a step for block tables `[b, blocks]` and lengths `[b]`, which include the tokens of this step. b may be
        0. `counts` `[b]`: rows of each sequence, its last tokens; None: one."""
        rows = None if counts is None else QueryRows(counts)
        self._kernel.plan(self._forest.plan(table, lengths), query_rows=rows)

    def attend(self, q: torch.Tensor, out: torch.Tensor, cache: torch.Tensor, scale: float) -> None:
        """Compute attention of q in the layer with this cache, and write it to out. Both are `[rows, heads, head_dim]`.

        q and out may have more rows than were planned. The additional rows of out stay unchanged.
        """
        self._kernel.decode(q, out, cache, scale)
