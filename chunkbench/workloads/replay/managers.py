"""The cache managers that replays compare, by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import ClassVar

from chunkbench.baselines.contract import Answer, Look
from chunkbench.baselines.registry import Registry
from chunkbench.experiment.look import Line
from chunkbench.kvcache.managers.contiguous import Contiguous
from chunkbench.kvcache.managers.hashed import HashedBlocks
from chunkbench.kvcache.managers.manager import AccountedManager
from chunkbench.kvcache.managers.paged import Paged
from chunkbench.kvcache.managers.prefix import PrefixManager
from chunkbench.replay.paper_a100 import PaperSystem


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


class ManagerKind:
    """A manager as experiments name it."""

    label: ClassVar[str]
    look: ClassVar[Look]
    compiles: ClassVar[bool] = False
    kernel: ClassVar[PaperSystem] = "paged"
    """Whose decode attention it has in the paper's model of step times."""

    @staticmethod
    def make(memory: Memory) -> AccountedManager:
        """A manager of this memory, empty."""
        raise NotImplementedError

    def availability(self, device: str) -> Answer:
        """A replay needs nothing but a CPU."""
        return Answer(True)


def _look(heading: str, place: int, colour: str, marker: str, meaning: str, line: Line = "solid") -> Look:
    words = tuple(heading.split())
    return Look(heading=words, place=place, colour=colour, marker=marker, line=line, meaning=meaning)


class ContiguousMax(ManagerKind):
    """Reservation of the largest length."""

    label = "Contiguous, max"
    look = _look(
        "contig. max", 100, "#6E6E6E", "v", "one piece of memory for the longest sequence that the server takes"
    )

    @staticmethod
    def make(memory: Memory) -> AccountedManager:
        """See `ManagerKind`."""
        return Contiguous(memory.slots, "max", memory.longest)


class ContiguousPow2(ManagerKind):
    """Reservation of a power of two."""

    label = "Contiguous, pow2"
    look = _look(
        "contig. pow2",
        110,
        "#6E6E6E",
        "<",
        "one piece for the prompt and the answer's next power of two",
        "dashed",
    )

    @staticmethod
    def make(memory: Memory) -> AccountedManager:
        """See `ManagerKind`."""
        return Contiguous(memory.slots, "pow2", memory.longest)


class ContiguousExact(ManagerKind):
    """Reservation of the length that an oracle knows."""

    label = "Contiguous, exact"
    look = _look("contig. exact", 120, "#6E6E6E", ">", "one piece for exactly what will be needed: an oracle", "dotted")

    @staticmethod
    def make(memory: Memory) -> AccountedManager:
        """See `ManagerKind`."""
        return Contiguous(memory.slots, "exact", memory.longest)


class PagedBlocks(ManagerKind):
    """PagedAttention's blocks."""

    label = "Paged"
    look = _look("paged", 200, "#0072B2", "s", "blocks on demand, shared only by forks (vLLM 0.2.7)")

    @staticmethod
    def make(memory: Memory) -> AccountedManager:
        """See `ManagerKind`."""
        return Paged(memory.slots // memory.block_size, memory.block_size)


class PagedPrefix(ManagerKind):
    """Blocks with prefix caching."""

    label = "Paged, prefix caching"
    look = _look(
        "paged prefix",
        210,
        "#0072B2",
        "D",
        "blocks found by hashes of tokens, kept until needed (vLLM 1)",
        "dashed",
    )
    kernel = "paged_star"

    @staticmethod
    def make(memory: Memory) -> AccountedManager:
        """See `ManagerKind`."""
        return HashedBlocks(memory.slots // memory.block_size, memory.block_size)


class LiveTree(ManagerKind):
    """The paper's prefix tree."""

    label = "Prefix tree"
    look = _look("prefix tree", 900, "#D55E00", "o", "chunks of live sequences, shared by prefix (ChunkAttention)")
    kernel = "chunk"

    @staticmethod
    def make(memory: Memory) -> AccountedManager:
        """See `ManagerKind`."""
        return PrefixManager(memory.slots // memory.chunk_size, memory.chunk_size)


class RadixTree(ManagerKind):
    """The prefix tree with retention."""

    label = "Radix tree"
    look = _look(
        "radix tree", 910, "#009E73", "P", "the same, and finished ones stay until memory is needed (RadixAttention)"
    )
    kernel = "chunk"

    @staticmethod
    def make(memory: Memory) -> AccountedManager:
        """See `ManagerKind`."""
        return PrefixManager(memory.slots // memory.chunk_size, memory.chunk_size, retain=True)


_CLASSES = {
    "contiguous_max": "ContiguousMax",
    "contiguous_pow2": "ContiguousPow2",
    "contiguous_exact": "ContiguousExact",
    "paged": "PagedBlocks",
    "paged_prefix": "PagedPrefix",
    "prefix_tree": "LiveTree",
    "radix_tree": "RadixTree",
}


def _entry_points() -> dict[str, EntryPoint]:
    return {
        name: EntryPoint(name, f"chunkbench.workloads.replay.managers:{kind}", "chunkbench.managers")
        for name, kind in _CLASSES.items()
    }


MANAGERS = Registry(_entry_points)
"""Managers of experiments of `kind: replay`."""
