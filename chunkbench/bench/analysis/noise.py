"""Decides whether a measurement is noisy: whether the machine had other load, or the times of the rounds differ
much."""

from __future__ import annotations

from collections.abc import Sequence

from chunkbench.bench.store.results import GpuState, Noise

STEAL_ABOVE, FOREIGN_CPUS_ABOVE = 0.05, 0.25
"""Limits above which a measurement is noisy: the share of CPU time that the hypervisor takes, and the number of CPUs
that other processes keep busy."""
HALF_WIDTH_ABOVE = 0.10
"""A measurement is noisy if the half-width of the latency's interval exceeds this share of the latency."""


def complaint(noise: Noise, half_width: float, gpu: Sequence[GpuState] = ()) -> str:
    """The reason why a measurement is noisy, with the figures; empty if the measurement is not noisy.

    `half_width` is the half-width of the latency's interval, relative to the latency; 0 with a single round. `gpu` has
    the state of the device in each round.
    """
    reasons = []
    if noise.steal_fraction > STEAL_ABOVE:
        reasons.append(f"the hypervisor took {noise.steal_fraction:.0%} of the CPU time")
    if noise.foreign_cpus > FOREIGN_CPUS_ABOVE:
        reasons.append(f"other processes kept {noise.foreign_cpus:.1f} CPUs busy")
    slow = sum(state.slow_samples for state in gpu)
    if slow:
        causes = ", ".join(dict.fromkeys(cause for state in gpu for cause in state.throttled_by))
        why = f" ({causes})" if causes else ""
        reasons.append(f"the clock stayed below 75% of its usual for {slow} samples{why}")
    if half_width > HALF_WIDTH_ABOVE:
        reasons.append(f"rounds lie up to {half_width:.0%} from their middle")
    return "; ".join(reasons)
