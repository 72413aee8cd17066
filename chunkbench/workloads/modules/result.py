"""Points and results of kind `modules`: the modules of a decoder layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chunkbench.bench.experiment.point import AttentionPoint, ModelPoint, SessionPoint
from chunkbench.bench.experiment.terms import Count
from chunkbench.bench.store.results import TimedResult
from chunkbench.llama import LlamaShape


class LayerPoint(AttentionPoint):
    """The attention of one decoder layer of `model`, as a point of decode attention."""

    model: LlamaShape


class ModulesPoint(ModelPoint, SessionPoint):
    """The modules of a decoder layer, for `batch_size` sequences of n_p tokens without shared prefixes. A round has n_c
    calls.
    """

    LEGACY: ClassVar[Mapping[str, Any]] = {"n_s": 0, "prompts": 1, "tree": None, "chunk_size": 64, "block_size": 32}

    n_p: Count

    @property
    def layer(self) -> LayerPoint:
        values = {name: value for name, value in self.as_json().items() if name in LayerPoint.model_fields}
        return LayerPoint.model_validate(values)


class ModulesResult(ModulesPoint, TimedResult):
    """The times of one module of a decoder layer at a point."""
