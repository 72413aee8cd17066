"""Times and sizes of attention over several ranks, computed from the rates of computing and transfer.

The break-even block is from RingAttention (arXiv 2310.01889), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chunkbench.workloads.ring.result import RingResult

Order = Literal["ring", "zigzag", "all_gather"]


@dataclass(frozen=True)
class Device:
    """Rates of a device: FLOP/s of attention, and bytes/s to the next device."""

    name: str
    flops_per_s: float
    bytes_per_s: float

    @classmethod
    def of_rates(cls, name: str, tflops: float, gb_per_s: float) -> Device:
        """A device with rates in 10^12 FLOP/s and 10^9 bytes/s."""
        return cls(name, tflops * 1e12, gb_per_s * 1e9)

    def break_even(self, element_bytes: int = 2, heads_per_kv_head: float = 1.0) -> float:
        """The break-even block, in tokens: c* = (e/2) (h_kv/h) F/B, for elements of e bytes, F FLOP/s and B bytes/s.
        Computing it takes as long as its transfer.
        """
        return element_bytes / 2 / heads_per_kv_head * self.flops_per_s / self.bytes_per_s


def break_even(facts: RingResult) -> float | None:
    """The break-even block c* of a point, from its probed rates. It is twice as large for a causal mask, under which a
    rank computes only half of the pairs.
    """
    if facts.flops_per_s is None or facts.bytes_per_s is None:
        return None
    device = Device("here", facts.flops_per_s, facts.bytes_per_s)
    tokens = device.break_even(facts.element_bytes, facts.heads / facts.kv_heads)
    return tokens if facts.mask == "full" else 2 * tokens


@dataclass(frozen=True)
class Shape:
    """Shape of a causal prefill of one layer."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    element_bytes: int

    def block_bytes(self, ranks: int) -> float:
        """Bytes of K and V of a rank's tokens."""
        return 2 * self.tokens / ranks * self.kv_heads * self.head_dim * self.element_bytes

    def sent_bytes(self, ranks: int) -> float:
        """Bytes that each rank sends in a pass. Every `Order` sends the same number."""
        return (ranks - 1) * self.block_bytes(ranks)

    def seconds(self, device: Device, ranks: int, order: Order) -> float:
        """Seconds of a pass in which transfers run during computing as far as `order` allows."""
        block = 4 * self.heads * self.head_dim * (self.tokens / ranks) ** 2 / device.flops_per_s
        transfer = self.block_bytes(ranks) / device.bytes_per_s
        if order == "all_gather":
            return (ranks - 1) * transfer + ranks * block / 2
        step = block if order == "ring" else block / 2
        # The first step is the rank's own block, half of which a causal mask hides. The last step sends nothing.
        own = block / 2
        return max(own, transfer) + (ranks - 2) * max(step, transfer) + step if ranks > 1 else own


def ideal_share(ranks: int) -> float:
    """Share of the ideal speed-up that a causal ring of consecutive blocks can reach: N / (2N - 1)."""
    return ranks / (2 * ranks - 1)
