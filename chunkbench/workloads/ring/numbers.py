"""Attention over several ranks: figures of a measured row, and what rates of compute and transfer imply.

Source: RingAttention (arXiv 2310.01889), section 3, for the six blocks and the break-even block; the causal schemes'
shares of the ideal follow from the layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from chunkbench.analysis.derive import Row
from chunkbench.workloads.ring.result import RingResult

BLOCKS = 6
"""Blocks of c tokens that a rank holds: q, K, V, the K and V that arrive, and the output."""
Order = Literal["ring", "zigzag", "all_gather"]


@dataclass(frozen=True)
class RingNumbers:
    """Of one scheme at one point; medians over rounds."""

    seconds: float
    busy: tuple[float, ...]
    """[rank] share of the time in which it computes."""
    transfer_s: float
    """Longest of all ranks; 0 where another library moves the bytes."""
    exposed: float | None
    """Share of the transfers' time in which a rank only waits, the largest of all ranks; None without transfers."""
    peak_bytes: int | None
    """Of the rank that takes most."""
    block_bytes: int
    """Six blocks of c tokens: of K and V in the point's dtype, and of as many tokens of q and of the output."""

    @property
    def of_six_blocks(self) -> float | None:
        """Peak bytes over those of six blocks."""
        return self.peak_bytes / self.block_bytes if self.peak_bytes is not None and self.block_bytes else None


def ring_numbers(row: Row) -> RingNumbers | None:
    """Numbers of a row; None if it was not timed."""
    facts = row.facts
    if not isinstance(facts, RingResult) or not facts.times:
        return None
    ranks = range(len(facts.ranks_facts))
    exposed = exposed_shares(facts)
    tokens = facts.n_p // facts.ranks
    wide = facts.heads * facts.head_dim
    # The output and its sums are float32 whatever the dtype; q and K/V are not.
    block = tokens * ((wide * facts.element_bytes) + 2 * facts.token_bytes + 4 * wide)
    peaks = [rank.peak_bytes for rank in facts.ranks_facts if rank.peak_bytes is not None]
    return RingNumbers(
        seconds=median(max(rank.total_s for rank in times) for times in facts.times),
        busy=tuple(median(times[rank].compute_s / times[rank].total_s for times in facts.times) for rank in ranks),
        transfer_s=median(max(rank.transfer_s for rank in times) for times in facts.times),
        exposed=median(exposed) if exposed else None,
        peak_bytes=max(peaks, default=None),
        block_bytes=block,
    )


def exposed_shares(facts: RingResult) -> list[float]:
    """[round] share of the transfers' time in which a rank only waits, of the rank that waits most; empty without."""
    if not all(rank.transfer_s for times in facts.times for rank in times):
        return []
    return [max(rank.wait_s / rank.transfer_s for rank in times) for times in facts.times]


def imbalance(facts: RingResult) -> float | None:
    """Pairs of query and key that the busiest rank computes, over the mean of all ranks; None if nothing is counted."""
    pairs: list[int] = [rank.pairs for rank in facts.ranks_facts]
    return max(pairs) * len(pairs) / sum(pairs) if sum(pairs) else None


def most_sent(facts: RingResult) -> int:
    """Bytes that a rank sends in a pass, the most of all ranks; 0 if nothing is sent, or nobody knows."""
    return max((rank.sent_bytes or 0 for rank in facts.ranks_facts), default=0)


@dataclass(frozen=True)
class Device:
    """What is counted for: FLOP/s of attention, and bytes/s to the next device."""

    name: str
    flops_per_s: float
    bytes_per_s: float

    @classmethod
    def of_rates(cls, name: str, tflops: float, gb_per_s: float) -> Device:
        """From rates in 10^12 FLOP/s and 10^9 bytes/s."""
        return cls(name, tflops * 1e12, gb_per_s * 1e9)

    def break_even(self, element_bytes: int = 2, heads_per_kv_head: float = 1.0) -> float:
        """Tokens of a block whose compute takes as long as its transfer: c* = (e/2) (h_kv/h) F/B."""
        return element_bytes / 2 / heads_per_kv_head * self.flops_per_s / self.bytes_per_s


def break_even(facts: RingResult) -> float | None:
    """c* of a point from its probed rates. Twice as much for a causal mask, which hides half of a rank's own block."""
    if facts.flops_per_s is None or facts.bytes_per_s is None:
        return None
    device = Device("here", facts.flops_per_s, facts.bytes_per_s)
    tokens = device.break_even(facts.element_bytes, facts.heads / facts.kv_heads)
    return tokens if facts.mask == "full" else 2 * tokens


@dataclass(frozen=True)
class Shape:
    """What is counted of: causal prefill of one layer."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    element_bytes: int

    def block_bytes(self, ranks: int) -> float:
        """K and V of a rank's tokens."""
        return 2 * self.tokens / ranks * self.kv_heads * self.head_dim * self.element_bytes

    def sent_bytes(self, ranks: int) -> float:
        """By each rank in a pass, whatever the order."""
        return (ranks - 1) * self.block_bytes(ranks)

    def seconds(self, device: Device, ranks: int, order: Order) -> float:
        """A pass if compute and transfer hide each other as far as the order allows. Counted, not measured."""
        block = 4 * self.heads * self.head_dim * (self.tokens / ranks) ** 2 / device.flops_per_s
        transfer = self.block_bytes(ranks) / device.bytes_per_s
        if order == "all_gather":
            return (ranks - 1) * transfer + ranks * block / 2
        step = block if order == "ring" else block / 2
        # The first step is a rank's own block, half of which a causal mask hides; the last step sends nothing.
        own = block / 2
        return max(own, transfer) + (ranks - 2) * max(step, transfer) + step if ranks > 1 else own


def ideal_share(ranks: int) -> float:
    """Of the ideal speed-up that a causal ring of consecutive blocks can reach: N / (2N - 1)."""
    return ranks / (2 * ranks - 1)
