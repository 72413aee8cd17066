"""Metrics of attention over several ranks. Times are medians over rounds. Peak memory is compared with the six blocks
that a rank of RingAttention holds (arXiv 2310.01889, section 3).
"""

from __future__ import annotations

from statistics import median

from chunkbench.report.metric import BYTES, SHARE, Metric, Unit, by_name, one
from chunkbench.workloads.ring.result import RingResult

BLOCKS = 6
"""Number of blocks of c tokens that a rank holds: q, K, V, the K and V that arrive, and the output."""


def exposed_shares(facts: RingResult) -> list[float]:
    """[round] exposed share of the transfers, on the rank with the largest share. The share is the time in which the
    rank only waits, divided by the time of its transfers. Empty without transfers.
    """
    if not all(rank.transfer_s for times in facts.times for rank in times):
        return []
    return [max(rank.wait_s / rank.transfer_s for rank in times) for times in facts.times]


def most_sent(facts: RingResult) -> int | None:
    """Largest number of bytes that a rank sends in a pass. None if no bytes are sent or counted."""
    return max((rank.sent_bytes or 0 for rank in facts.ranks_facts), default=0) or None


def imbalance(facts: RingResult) -> float | None:
    """Pairs of query and key that the busiest rank computes, over the mean of all ranks. None if pairs are unknown."""
    pairs: list[int] = [rank.pairs for rank in facts.ranks_facts]
    return max(pairs) * len(pairs) / sum(pairs) if sum(pairs) else None


def block_bytes(facts: RingResult) -> int:
    """Bytes of the six blocks that a rank holds (`BLOCKS`), with c = n_p / ranks tokens each. The output is in float32,
    the other blocks are in the point's dtype.
    """
    wide = facts.heads * facts.head_dim
    return facts.n_p // facts.ranks * (wide * facts.element_bytes + 2 * facts.token_bytes + 4 * wide)


def peak_bytes(facts: RingResult) -> int | None:
    """Largest peak memory of a rank, in bytes. None if the point was not timed, or the system reports no memory."""
    known = [rank.peak_bytes for rank in facts.ranks_facts if rank.peak_bytes is not None]
    return max(known, default=None) if facts.times else None


def busy(facts: RingResult) -> list[float]:
    """[rank] share of the time in which the rank computes, as the median over rounds. Empty for an untimed point."""
    ranks = zip(*facts.times, strict=True)
    return [median(rank.compute_s / rank.total_s for rank in rounds) for rounds in ranks]


def _of_six_blocks(facts: RingResult) -> float | None:
    peak = peak_bytes(facts)
    return peak / block_bytes(facts) if peak is not None and facts.phase == "prefill" else None


METRICS = by_name(
    Metric("least_busy", "busy, least busy rank", one(lambda facts: min(busy(facts), default=None)), SHARE, "higher"),
    Metric("most_busy", "busy, most busy rank", one(lambda facts: max(busy(facts), default=None)), SHARE, "higher"),
    Metric("work", "work", one(imbalance), Unit("x", "{:.3f}".format), exact=True),
    Metric("exposed", "exposed", exposed_shares, SHARE),
    Metric("sent_bytes", "sent MB", one(most_sent), BYTES, exact=True),
    Metric("peak_bytes", "peak MB", one(peak_bytes), BYTES),
    Metric("of_six_blocks", "of 6bch", one(_of_six_blocks), Unit("x", "{:.2f}".format)),
    Metric("max_error", "error", one(lambda facts: facts.max_error), Unit("", "{:.1e}".format)),
)
