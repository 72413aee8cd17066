"""The modules of a decoder layer: measured times beside costs computed from the shapes (the paper's Table 1)."""

from __future__ import annotations

from typing import Any

from chunkbench.kinds import Kind


def _reading() -> Any:
    from chunkbench.workloads.layer.reading import READING

    return READING


def _implementations() -> Any:
    from chunkbench.workloads.layer.registry import MODULES

    return MODULES


def _facts() -> Any:
    from chunkbench.store.facts import CaseFacts

    return CaseFacts


def _measuring() -> Any:
    from chunkbench.workloads.layer.measuring import MEASURING

    return MEASURING


def _working() -> Any:
    from chunkbench.workloads.layer.working import WORKING

    return WORKING


def _showing() -> Any:
    from chunkbench.workloads.layer.showing import SHOWING

    return SHOWING


KIND = Kind("modules", _reading, _implementations, _facts, _measuring, _working, _showing)
