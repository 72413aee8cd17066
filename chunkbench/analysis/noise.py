"""When a measurement is called noisy: what else the machine did, and how far rounds lie apart."""

from __future__ import annotations

from collections.abc import Sequence

from chunkbench.store.facts import GpuState, Noise

STEAL_ABOVE, FOREIGN_CPUS_ABOVE = 0.05, 0.25
"""Share of CPU time that the hypervisor took, and CPUs that other processes kept busy: more is noise."""
HALF_WIDTH_ABOVE = 0.10
"""Half-width of the latency's interval, relative to the latency."""


def complaint(noise: Noise, half_width: float, gpu: Sequence[GpuState] = ()) -> str:
    """Why a measurement is noisy, with the figures; empty when it is not.

    `half_width` is that of the latency's interval, relative to the latency; 0 where there is one round only. `gpu` is
    what the device did in each round.
    """
    said = []
    if noise.steal_fraction > STEAL_ABOVE:
        said.append(f"the hypervisor took {noise.steal_fraction:.0%} of the CPU time")
    if noise.foreign_cpus > FOREIGN_CPUS_ABOVE:
        said.append(f"other processes kept {noise.foreign_cpus:.1f} CPUs busy")
    slow = sum(state.slow_samples for state in gpu)
    if slow:
        reasons = ", ".join(dict.fromkeys(reason for state in gpu for reason in state.throttled_by))
        why = f" ({reasons})" if reasons else ""
        said.append(f"the clock stayed below 75% of its usual for {slow} samples{why}")
    if half_width > HALF_WIDTH_ABOVE:
        said.append(f"rounds lie up to {half_width:.0%} from their middle")
    return "; ".join(said)
