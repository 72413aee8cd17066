"""What a kind of work provides so that its experiments can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chunkbench import kinds
from chunkbench.experiment.model import Experiment
from chunkbench.experiment.sweep import SweepRules


@dataclass(frozen=True)
class Reading:
    """How experiments of one kind are read."""

    experiment: type[Experiment]
    """The model of a file: its keys, and the rules that its values must satisfy together."""
    summary: str
    """A few words for the description of the key `kind`."""
    rules: SweepRules
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Key -> default, where it differs from the model's."""


def reading(kind: str) -> Reading:
    """How experiments of a kind are read. Raises `LookupError` for an unknown kind."""
    kind_reading: Reading = kinds.get(kind).reading()
    return kind_reading
