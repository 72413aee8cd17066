"""The kinds of work, one folder each: the kind's class, keys of experiments, measuring and reports.

`register` makes the kinds known to the rooms below, which look a kind up by its name. A kind may use parts of another.
"""

from __future__ import annotations

from chunkbench.bench import workload
from chunkbench.workloads.answers import AnswersWorkload
from chunkbench.workloads.decode import DecodeWorkload
from chunkbench.workloads.memory import MemoryWorkload
from chunkbench.workloads.modules import ModulesWorkload
from chunkbench.workloads.replay import ReplayWorkload
from chunkbench.workloads.ring import RingWorkload
from chunkbench.workloads.serving import ServingWorkload

KINDS: tuple[workload.AnyWorkload, ...] = (
    DecodeWorkload(),
    MemoryWorkload(),
    ModulesWorkload(),
    ServingWorkload(),
    ReplayWorkload(),
    AnswersWorkload(),
    RingWorkload(),
)
"""All kinds, in order. An experiment that names no kind is of the first."""


def register() -> None:
    """Add all kinds of work to the registry, in order."""
    for kind in KINDS:
        workload.add(kind)
