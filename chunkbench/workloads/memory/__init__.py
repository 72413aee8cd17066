"""Bytes of K and V that implementations hold; nothing is timed (section 3.1 of the paper)."""

from __future__ import annotations

from typing import Any

from chunkbench.kinds import Kind


def _reading() -> Any:
    from chunkbench.workloads.memory.reading import READING

    return READING


def _implementations() -> Any:
    from chunkbench.baselines.registry import REGISTRY

    return REGISTRY


def _facts() -> Any:
    from chunkbench.store.facts import CaseFacts

    return CaseFacts


def _measuring() -> Any:
    from chunkbench.workloads.memory.measuring import MEASURING

    return MEASURING


def _working() -> Any:
    from chunkbench.workloads.decode.working import WORKING

    return WORKING


def _showing() -> Any:
    from chunkbench.workloads.memory.showing import SHOWING

    return SHOWING


KIND = Kind("memory", _reading, _implementations, _facts, _measuring, _working, _showing)
