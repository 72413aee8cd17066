"""Points and results of kind `ring`: attention over several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AllowInfNan, Field, NonNegativeFloat, PositiveFloat, model_validator

from chunkbench.bench.experiment.point import Point
from chunkbench.bench.experiment.terms import Count, Size
from chunkbench.bench.store.results import Facts, Result, Samples


class RingPoint(Point):
    """A context of n_p tokens over several ranks: the prefill of one sequence, or a decode step of `batch_size`
    sequences.

    Sequences that decode share their first n_s tokens, which are split over the ranks. `link` is in bytes per second.
    `threads` is the number of threads of each rank.
    """

    batch_size: Size = 1
    n_p: Size
    n_s: Count | None = None
    heads: Size = 32
    kv_heads: Size
    head_dim: Size = 128
    ranks: Size = 2
    phase: Literal["prefill", "decode"] = "prefill"
    mask: Literal["causal", "full"] | None = None
    link: Count | None = None

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        values = super().completed(given)
        values["kv_heads"] = given.get("kv_heads", values["heads"])
        if values["phase"] == "decode":
            return values | {"n_s": values["n_p"] if values["n_s"] is None else values["n_s"]}
        return values | {"mask": given.get("mask", "causal")}

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token, all KV heads."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes


class RankTimes(Facts):
    """The times of one rank in one round, in seconds."""

    total_s: PositiveFloat
    """Time of the pass after all ranks were ready."""
    compute_s: NonNegativeFloat
    wait_s: NonNegativeFloat
    """Time in which the rank only waited for transfers."""
    transfer_s: NonNegativeFloat
    """Time in which a transfer was under way, whether the rank computed or not."""


class RankFacts(Facts):
    """Facts about one rank that are the same in all rounds."""

    sent_bytes: Count | None
    """Bytes sent in one pass. None if another library moves the bytes."""
    peak_bytes: Count | None
    """Peak memory of the rank's session, with its inputs, in bytes. None if the system does not report memory."""
    pairs: Count
    """Pairs of query and key that the rank computes, at 4 * heads * head_dim FLOPs each. Computed from the layout."""


Activity = tuple[Literal["compute", "transfer", "wait"], float, float]
"""(activity, start, end) in seconds after the start of a pass."""


class RingResult(RingPoint, Result):
    """The times and facts of one scheme at a point."""

    times: tuple[Annotated[tuple[RankTimes, ...], Field(min_length=1)], ...] = ()
    """[round][rank] times of a pass."""
    ranks_facts: tuple[RankFacts, ...] = ()
    """[rank] facts that are the same in all rounds."""
    timeline: tuple[tuple[Activity, ...], ...] = ()
    """[rank] activities in the last round."""
    flops_per_s: PositiveFloat | None = None
    """Probed rate of the block kernel on one rank while all ranks compute."""
    bytes_per_s: PositiveFloat | None = None
    """Probed bytes per second of a transfer around the ring. It is at most the rate of `link`. None for one rank."""
    max_error: Annotated[float, AllowInfNan(True)] | None = None
    tolerance: float | None = None
    hosts: Count = 1
    """Number of machines that the ranks ran on. Ranks on one machine share its memory and links."""

    @property
    def rounds(self) -> Samples:
        """[round] time of the slowest rank, microseconds."""
        return tuple((1e6 * max(rank.total_s for rank in ranks),) for ranks in self.times)

    @property
    def round_groups(self) -> tuple[int, ...]:
        return (0,) * len(self.times)

    @model_validator(mode="after")
    def _every_rank_is_there(self) -> Self:
        """Raise ValueError if a round lacks the times of a rank."""
        if any(len(ranks) != len(self.ranks_facts) for ranks in self.times):
            raise ValueError(f"a round of times does not have one entry for each of {len(self.ranks_facts)} ranks")
        return self
