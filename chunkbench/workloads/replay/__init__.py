"""Replays of requests through cache managers on a virtual clock. Nothing is measured."""

from __future__ import annotations

from typing import Any

from chunkbench.kinds import Kind


def _reading() -> Any:
    from chunkbench.workloads.replay.reading import READING

    return READING


def _implementations() -> Any:
    from chunkbench.workloads.replay.managers import MANAGERS

    return MANAGERS


def _facts() -> Any:
    from chunkbench.store.replay_facts import ReplayFacts

    return ReplayFacts


def _measuring() -> Any:
    from chunkbench.workloads.replay.measuring import MEASURING

    return MEASURING


def _working() -> Any:
    raise LookupError("replays are computed by the runner: no worker measures them")


def _showing() -> Any:
    from chunkbench.workloads.replay.showing import SHOWING

    return SHOWING


KIND = Kind("replay", _reading, _implementations, _facts, _measuring, _working, _showing)
