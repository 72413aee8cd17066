"""The cache managers that replays compare, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chunkbench.baselines.contract import YES, Answer, Style
from chunkbench.baselines.registry import Registry
from chunkbench.kvcache.managers.contiguous import Contiguous
from chunkbench.kvcache.managers.hashed import HashedBlocks
from chunkbench.kvcache.managers.manager import AccountedManager
from chunkbench.kvcache.managers.paged import Paged
from chunkbench.kvcache.managers.prefix import PrefixManager
from chunkbench.workloads.replay.paper_a100 import PaperSystem


@dataclass(frozen=True)
class Memory:
    """The memory that a manager gets."""

    slots: int
    """Token slots."""
    block_size: int
    """Tokens of a block of the paged managers."""
    chunk_size: int
    """Tokens of a chunk of the trees."""
    longest: int
    """Tokens of the longest sequence that the server takes."""


@dataclass(frozen=True)
class ManagerKind:
    """A manager as experiments name it."""

    label: str
    make: Callable[[Memory], AccountedManager]
    """A manager of this memory, empty."""
    style: Style
    kernel: PaperSystem = "paged_attn"
    """Whose decode attention it has in the paper's model of step times."""
    swaps: bool = False
    """Whether preempted sequences are swapped, not computed again."""
    compiles = False

    def availability(self, device: str) -> Answer:
        """A replay needs nothing but a CPU."""
        return YES


_GREY, _BLUE = "#6E6E6E", "#0072B2"

KINDS: Mapping[str, ManagerKind] = {
    "contiguous_max": ManagerKind(
        "Contiguous, max",
        lambda memory: Contiguous(memory.slots, "max", memory.longest),
        Style(
            heading=("contig.", "max"),
            meaning="one piece of memory for the longest sequence that the server takes",
            column_order=100,
            colour=_GREY,
            marker="v",
        ),
    ),
    "contiguous_pow2": ManagerKind(
        "Contiguous, pow2",
        lambda memory: Contiguous(memory.slots, "pow2", memory.longest),
        Style(
            heading=("contig.", "pow2"),
            meaning="one piece for the prompt and the answer's next power of two",
            column_order=110,
            colour=_GREY,
            marker="<",
            line="dashed",
        ),
    ),
    "contiguous_exact": ManagerKind(
        "Contiguous, exact",
        lambda memory: Contiguous(memory.slots, "exact", memory.longest),
        Style(
            heading=("contig.", "exact"),
            meaning="one piece for exactly what will be needed: an oracle",
            column_order=120,
            colour=_GREY,
            marker=">",
            line="dotted",
        ),
    ),
    "paged": ManagerKind(
        "Paged",
        lambda memory: Paged(memory.slots // memory.block_size, memory.block_size),
        Style(
            heading=("paged",),
            meaning="blocks on demand, shared only by forks (vLLM 0.2.7)",
            column_order=200,
            colour=_BLUE,
            marker="s",
        ),
    ),
    "paged_swap": ManagerKind(
        "Paged, swapping",
        lambda memory: Paged(memory.slots // memory.block_size, memory.block_size),
        Style(
            heading=("paged", "swap"),
            meaning="the same, and preempted sequences are copied out and back, at this machine's rate",
            column_order=205,
            colour=_BLUE,
            marker="X",
            line="dotted",
        ),
        swaps=True,
    ),
    "paged_prefix": ManagerKind(
        "Paged, prefix caching",
        lambda memory: HashedBlocks(memory.slots // memory.block_size, memory.block_size),
        Style(
            heading=("paged", "prefix"),
            meaning="blocks found by hashes of tokens, kept until needed (vLLM 1)",
            column_order=210,
            colour=_BLUE,
            marker="D",
            line="dashed",
        ),
        kernel="paged_attn_star",
    ),
    "prefix_tree": ManagerKind(
        "Prefix tree",
        lambda memory: PrefixManager(memory.slots // memory.chunk_size, memory.chunk_size),
        Style(
            heading=("prefix", "tree"),
            meaning="chunks of live sequences, shared by prefix (ChunkAttention)",
            column_order=900,
            colour="#D55E00",
            marker="o",
        ),
        kernel="chunk_attn",
    ),
    "radix_tree": ManagerKind(
        "Radix tree",
        lambda memory: PrefixManager(memory.slots // memory.chunk_size, memory.chunk_size, retain=True),
        Style(
            heading=("radix", "tree"),
            meaning="the same, and finished ones stay until memory is needed (RadixAttention)",
            column_order=910,
            colour="#009E73",
            marker="P",
        ),
        kernel="chunk_attn",
    ),
}
"""By the names that experiments use, in the order in which they are listed."""

MANAGERS: Registry[ManagerKind] = Registry(lambda: KINDS)
"""Managers of experiments of `kind: replay`."""
