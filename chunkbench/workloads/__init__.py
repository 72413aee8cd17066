"""All kinds of work. Each folder holds one kind: its class, experiment keys, measurement and reports. A kind may import
parts of another kind.
"""

from __future__ import annotations

from chunkbench.bench import workload
from chunkbench.workloads.answers import AnswersWorkload
from chunkbench.workloads.decode import DecodeWorkload
from chunkbench.workloads.growth import GrowthWorkload
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
    GrowthWorkload(),
)
"""All kinds. The first one is the default of experiments."""


def register() -> None:
    for kind in KINDS:
        workload.add(kind)
