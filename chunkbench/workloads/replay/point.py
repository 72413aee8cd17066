"""The points of replays through cache managers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chunkbench.experiment.llama import SHAPES, LlamaShape
from chunkbench.experiment.points import RequestPoint
from chunkbench.experiment.terms import Count, Size


class ReplayPoint(RequestPoint):
    """Requests through a cache manager. Where `traffic` decides lengths, n_p and n_c are None."""

    model: LlamaShape = SHAPES["llama2-7b"]
    n_p: Count | None = None
    n_c: Count | None = None
    chunk_size: Size = 64
    block_size: Size = 32
    traffic: str | None = None
    memory: Count | None = None
    schedule: str | None = None
    samples: Count | None = None
    beams: Count | None = None

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        values = super().completed(given)
        if given.get("traffic", "fixed") == "fixed":
            values["n_c"] = given.get("n_c", 64)
        return values if "tree" in given else values | {"n_s": values["n_s"] or 0}

    def as_json(self) -> dict[str, Any]:
        # Keys have 0 where traffic decides.
        return {**super().as_json(), "n_p": self.n_p or 0, "n_c": self.n_c or 0}
