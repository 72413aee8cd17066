"""Experiments on the memory of K and V: like experiments on decode attention, but without timing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chunkbench.bench.experiment import AttentionPoint, SessionExperiment
from chunkbench.bench.experiment.findings import Finding
from chunkbench.bench.experiment.spec import N_P, N_S
from chunkbench.workloads.decode.spec import MODEL, attention_conflicts

_TIMING = "is about timing, and `kind: memory` times nothing; leave it out"


class MemoryExperiment(SessionExperiment[AttentionPoint]):
    """An experiment that fills caches of decode attention and checks them. Nothing is timed."""

    POINT = AttentionPoint
    REQUIRED = (N_P, N_S)
    REFUSED = MODEL | dict.fromkeys(("protocols", "caches", "modes", "expect", "min_rounds", "max_rounds"), _TIMING)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
        return attention_conflicts(given, values)
