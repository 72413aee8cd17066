"""Compile-time constants of each kernel, from shape and tuning. Launches and `compile.build` both use them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from chunkbench.draft import Drafts
from chunkbench.kernels.triton.tuning import Tuning
from chunkbench.kv_dtype import KV_DTYPES, KvDtype, width

PLACE_BYTES = 16
"""Unit of the places of chunks, in bytes. With this unit the compiler knows that loads of 16 bytes are aligned."""
DRAFTS: tuple[Drafts, ...] = ("none", "chains", "trees")
"""Drafts that a launch computes, as the kernels count them."""
_NARROW = 16  # smallest number of query heads in a tile: what a matrix instruction needs


def power_of_two(number: int) -> int:
    """`number`, rounded up to a power of two."""
    return 1 << (number - 1).bit_length()


def narrow(group: int) -> int:
    """Number of query heads in the small tile. `group`: query heads per KV head."""
    return max(_NARROW, power_of_two(group))


class Sizes(NamedTuple):
    """The shape of a store's chunks, and the number of query heads."""

    heads: int
    kv_heads: int
    head_dim: int
    chunk_size: int
    dtype: torch.dtype
    token_step: int = 0
    """Elements between two tokens of a head in a chunk. 0 means that tokens follow each other."""
    head_step: int = 0
    """Elements between two heads of a chunk. 0 means that the tokens of a head follow those of the head before it."""
    kv_dtype: KvDtype = "same"
    """How K and V are stored. In 8 bits, an element is a byte, and a token is what `eight_bits.narrow` makes."""
    rope: int = 0
    """Numbers of a query and of a key behind the first `head_dim`. V has `head_dim` numbers."""
    latent: bool = False
    """Whether V is the first `head_dim` numbers of K, and all KV heads read the same K."""

    @property
    def token_bytes(self) -> int:
        """Bytes of the numbers of a token, for a KV head."""
        return (self.head_dim + self.rope + (0 if self.latent else self.head_dim)) * self.itemsize

    def for_heads(self, heads: int, lanes: int) -> Sizes:
        """The same chunks for `heads` query heads and tiles of at most `lanes` query heads. All query heads read the
        same latents, so these count as the K of as many KV heads as there are tiles."""
        if not self.latent:
            return self._replace(heads=heads)
        return self._replace(
            heads=heads, kv_heads=next(n for n in range(-(-heads // lanes), heads + 1) if heads % n == 0)
        )

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def itemsize(self) -> int:
        """Bytes of an element of K and V."""
        return self.dtype.itemsize if self.kv_dtype == "same" else 1


def append_tokens(sizes: Sizes) -> dict[str, Any]:
    return _chunks(sizes) | {"KV_HEADS": sizes.kv_heads, "LANES": power_of_two(sizes.kv_heads)}


def partial_results(sizes: Sizes, tuning: Tuning, wide: bool, overlap: bool) -> dict[str, Any]:
    return _queries(sizes, overlap) | {
        "NARROW": narrow(sizes.group),
        "WIDE": tuning.wide if wide else 0,
        "NARROW_TILE": tuning.narrow_tile,
        "NARROW_STAGES": tuning.narrow_stages,
        "TILE": tuning.tile,
        "STAGES": tuning.stages,
    }


def merge_rows(sizes: Sizes, tuning: Tuning, overlap: bool) -> dict[str, Any]:
    # Partial results per load: as in the tuning table, but fewer for wide groups, which need more registers for each.
    group = merged_heads(sizes)
    fold = max(1, min(tuning.fold, 4096 // (power_of_two(group) * sizes.head_dim)))
    lanes = {"LANES": narrow(group), "TILE": tuning.merge_tile, "FOLD": fold}
    return _queries(sizes, overlap) | lanes | {"GROUP": group}


def merged_heads(sizes: Sizes) -> int:
    """Query heads of a program of `merge_rows`: all that read the same K. Those of latents have no tails and much wider
    outputs, so a program takes fewer."""
    return sizes.group if not sizes.rope else max(n for n in (1, 2, 4) if sizes.group % n == 0)


def merge_warps(sizes: Sizes, tuning: Tuning) -> int:
    """Number of warps in a block of `merge_rows`. Wide groups get more than the tuning table says, because their sums
    fill more registers."""
    return max(tuning.merge_warps, min(8, power_of_two(merged_heads(sizes)) * sizes.head_dim // 512))


def overlaps(generation: int) -> bool:
    """Whether a launch may begin before the one before it has ended: programmatic dependent launch."""
    return generation >= 90


def _chunks(sizes: Sizes) -> dict[str, Any]:
    value_step = sizes.token_step or width(sizes.head_dim, sizes.kv_dtype)
    step = value_step + sizes.rope
    return {
        "CHUNK": sizes.chunk_size,
        "D": sizes.head_dim,
        "ROPE": sizes.rope,
        "LATENT": sizes.latent,
        "TOKEN_STEP": step,
        "VALUE_STEP": value_step,
        "HEAD_STEP": 0 if sizes.latent else sizes.head_step or sizes.chunk_size * step,
        "VALUE_HEAD_STEP": sizes.head_step or sizes.chunk_size * value_step,
        "UNIT": PLACE_BYTES // sizes.itemsize,
        "FORM": KV_DTYPES.index(sizes.kv_dtype),
    }


def _queries(sizes: Sizes, overlap: bool) -> dict[str, Any]:
    return _chunks(sizes) | {"HEADS": sizes.heads, "GROUP": sizes.group, "OVERLAP": overlap}
