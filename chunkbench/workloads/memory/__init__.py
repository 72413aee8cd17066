"""Kind of work `memory`: counts the bytes of K and V that implementations hold, without timing (section 3.1 of the
paper).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkbench.workloads.decode import AttentionWorkload
from chunkbench.workloads.memory.result import MemoryResult
from chunkbench.workloads.memory.spec import MemoryExperiment

if TYPE_CHECKING:
    from chunkbench.report.layout import Layout


class MemoryWorkload(AttentionWorkload[MemoryExperiment, MemoryResult]):
    """Fills sessions one by one and records the bytes that each session reports."""

    name = "memory"
    summary = "bytes of K/V, not timed"
    experiment = MemoryExperiment
    result = MemoryResult

    def layout(self) -> Layout:
        from chunkbench.workloads.memory.layout import LAYOUT

        return LAYOUT
