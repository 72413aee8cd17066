"""The points of servers under load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chunkbench.experiment.llama import SHAPES, LlamaShape
from chunkbench.experiment.points import RequestPoint
from chunkbench.experiment.terms import Count


class ServingPoint(RequestPoint):
    """Servers under load: `load` in percent of a system's capacity, `rate` in requests per minute, or `clients`.

    `forced` is the percentage of an answer's bytes that its constraint leaves no choice about.
    """

    LEGACY: ClassVar[Mapping[str, Any]] = {"chunk_size": 64, "block_size": 32}

    model: LlamaShape = SHAPES["small-llama"]
    n_p: Count
    n_c: Count = 64
    load: Count | None = None
    clients: Count | None = None
    forced: Count | None = None
