"""Servers under load: normalized latency, K/V memory and batch (section 4.2 of the paper)."""

from __future__ import annotations

from typing import Any

from chunkbench.kinds import Kind


def _reading() -> Any:
    from chunkbench.workloads.serving.reading import READING

    return READING


def _implementations() -> Any:
    from chunkbench.serving.servers.registry import SYSTEMS

    return SYSTEMS


def _facts() -> Any:
    from chunkbench.store.serving_facts import ServingFacts

    return ServingFacts


def _measuring() -> Any:
    try:
        from chunkbench.workloads.serving.measuring import MEASURING
    except ModuleNotFoundError as error:
        from chunkbench.store import CannotRunError

        raise CannotRunError(f"{error.name} is missing: pip install 'chunkbench[serving]'") from None
    return MEASURING


def _working() -> Any:
    raise LookupError("servers are processes of their own: no worker measures them")


def _showing() -> Any:
    from chunkbench.workloads.serving.showing import SHOWING

    return SHOWING


KIND = Kind("serving", _reading, _implementations, _facts, _measuring, _working, _showing)
