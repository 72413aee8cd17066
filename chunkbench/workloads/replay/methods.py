"""The cache managers that replays compare, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chunkbench.attention.manager import AccountedManager
from chunkbench.attention.text import Text
from chunkbench.bench.contract import YES, Answer, Style
from chunkbench.bench.registry import Registry
from chunkbench.workloads.replay.managers.contiguous import Contiguous
from chunkbench.workloads.replay.managers.hashed import HashedBlocks
from chunkbench.workloads.replay.managers.paged import Paged
from chunkbench.workloads.replay.managers.policies import Adaptive, Belady, LeastFrequent
from chunkbench.workloads.replay.managers.policy_blocks import Policy, PolicyBlocks
from chunkbench.workloads.replay.managers.prefix import PrefixManager
from chunkbench.workloads.replay.paper_a100 import PaperSystem


@dataclass(frozen=True)
class Memory:
    """The memory that a manager gets."""

    slots: int
    block_size: int
    """Tokens of a block of the paged managers."""
    chunk_size: int
    """Tokens of a chunk of the trees."""
    longest: int
    """Tokens of the longest sequence that the server takes."""
    texts: Sequence[Text] = ()
    """The texts of all requests, in order of arrival."""

    @property
    def blocks(self) -> int:
        """Number of blocks of the paged managers."""
        return self.slots // self.block_size


@dataclass(frozen=True)
class ManagerKind:
    """A manager that experiments can name."""

    label: str
    make: Callable[[Memory], AccountedManager]
    style: Style
    kernel: PaperSystem = "paged_attn"
    """System in the paper's Table 3. With `step_time: paper`, its times of decode attention are used."""
    swaps: bool = False
    """Whether preempted sequences are swapped to host memory instead of computed again."""
    one_at_a_time: bool = False
    """Whether the manager is defined only for requests that run one after the other, in order of arrival."""
    compiles = False

    def availability(self, device: str) -> Answer:
        return YES


_GREY, _BLUE = "#6E6E6E", "#0072B2"


def _with_policy(policy: Callable[[Memory], Policy]) -> Callable[[Memory], AccountedManager]:
    """Build blocks with keys whose evictions follow a policy."""
    return lambda memory: HashedBlocks(memory.blocks, memory.block_size, PolicyBlocks(memory.blocks, policy(memory)))


def _belady(memory: Memory) -> Belady:
    """Build the optimum without requests that never fit: they are refused, so the optimum must not plan for them."""
    fitting = [text for text in memory.texts if text.total <= memory.blocks * memory.block_size]
    return Belady(fitting, memory.block_size)


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
        lambda memory: Paged(memory.blocks, memory.block_size),
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
        lambda memory: Paged(memory.blocks, memory.block_size),
        Style(
            heading=("paged", "swap"),
            meaning="as Paged, but preempted sequences are copied out and back, at this machine's rate",
            column_order=205,
            colour=_BLUE,
            marker="X",
            line="dotted",
        ),
        swaps=True,
    ),
    "paged_prefix": ManagerKind(
        "Paged, prefix caching",
        lambda memory: HashedBlocks(memory.blocks, memory.block_size),
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
    "lfu": ManagerKind(
        "Paged, least frequently used",
        _with_policy(lambda memory: LeastFrequent()),
        Style(
            heading=("paged", "LFU"),
            meaning="as Paged with prefix caching, but blocks that were used least often are evicted first",
            column_order=220,
            colour="#CC79A7",
            marker="^",
            line="dashdot",
        ),
        kernel="paged_attn_star",
    ),
    "arc": ManagerKind(
        "Paged, ARC",
        _with_policy(lambda memory: Adaptive(memory.blocks)),
        Style(
            heading=("paged", "ARC"),
            meaning="as Paged with prefix caching, but the cache learns how many blocks that were used once to keep",
            column_order=230,
            colour="#E69F00",
            marker="X",
        ),
        kernel="paged_attn_star",
    ),
    "belady": ManagerKind(
        "Paged, optimum",
        _with_policy(_belady),
        Style(
            heading=("paged", "Belady"),
            meaning=(
                "as Paged with prefix caching, but it knows all requests and evicts the block whose next use is "
                "furthest: the optimum"
            ),
            column_order=240,
            colour="#000000",
            marker="*",
            line="dotted",
        ),
        kernel="paged_attn_star",
        one_at_a_time=True,
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
            meaning="as the prefix tree, but chunks of finished requests stay until memory is needed (RadixAttention)",
            column_order=910,
            colour="#009E73",
            marker="P",
        ),
        kernel="chunk_attn",
    ),
}

MANAGERS: Registry[ManagerKind] = Registry(KINDS)
"""The managers that experiments of `kind: replay` can name."""
