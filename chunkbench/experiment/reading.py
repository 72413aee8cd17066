"""How the experiments of a kind of work are read: its part for this room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chunkbench import kinds
from chunkbench.experiment.model import Experiment
from chunkbench.experiment.sweep import SweepRules


@dataclass(frozen=True)
class Reading:
    """What a kind says of its experiments."""

    experiment: type[Experiment]
    """The model of a file: the keys that it may hold, and what has to fit together."""
    summary: str
    """In a few words, for the documentation of the key `kind`."""
    rules: SweepRules
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Keys that have other defaults than the model's."""


def reading(kind: str) -> Reading:
    """How experiments of a kind are read. Raises `LookupError` for an unknown one."""
    found: Reading = kinds.get(kind).reading()
    return found
