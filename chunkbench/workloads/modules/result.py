"""The facts about modules of a decoder layer."""

from __future__ import annotations

from chunkbench.store.results import TimedResult
from chunkbench.workloads.modules.point import ModulesPoint


class ModulesResult(ModulesPoint, TimedResult):
    """A module of a decoder layer, timed."""
