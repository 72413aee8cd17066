"""Decode attention over shared prefixes, timed (the paper's Table 3, Figures 3 and 4)."""

from __future__ import annotations

from typing import Any

from chunkbench.kinds import Kind


def _reading() -> Any:
    from chunkbench.workloads.decode.reading import READING

    return READING


def _implementations() -> Any:
    from chunkbench.baselines.registry import REGISTRY

    return REGISTRY


def _facts() -> Any:
    from chunkbench.store.facts import CaseFacts

    return CaseFacts


def _measuring() -> Any:
    from chunkbench.workloads.decode.measuring import MEASURING

    return MEASURING


def _working() -> Any:
    from chunkbench.workloads.decode.working import WORKING

    return WORKING


def _showing() -> Any:
    from chunkbench.workloads.decode.showing import SHOWING

    return SHOWING


KIND = Kind("decode", _reading, _implementations, _facts, _measuring, _working, _showing)
