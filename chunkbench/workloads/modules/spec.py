"""Experiments on the modules of a decoder layer. The key `model` gives the numbers and sizes of the layer's heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from chunkbench.bench.experiment import TimedExperiment
from chunkbench.bench.experiment.fields import ImplementationId, Implementations
from chunkbench.bench.experiment.findings import Finding
from chunkbench.bench.experiment.forest import prompt_conflicts
from chunkbench.bench.experiment.spec import BASELINE, FROM_MODEL, N_P
from chunkbench.bench.experiment.sweep import Required
from chunkbench.bench.experiment.values import LengthRange
from chunkbench.workloads.modules.methods import MODULES
from chunkbench.workloads.modules.result import ModulesPoint

_SHARING = "cannot be used with `kind: modules`, whose modules share nothing; leave it out"
_MODEL = Required(frozenset({"model"}), "model is missing, here and under defaults; it names the model of the layer")


class ModulesExperiment(TimedExperiment[ModulesPoint]):
    """An experiment that times the modules of a decoder layer."""

    POINT = ModulesPoint
    REQUIRED = (_MODEL, N_P)
    REFUSED = FROM_MODEL | dict.fromkeys(("n_s", "prompts", "tree", "chunk_size", "block_size"), _SHARING)

    implementations: Implementations = tuple(MODULES.names())
    baseline: ImplementationId = Field("self_attention", validate_default=True, description=BASELINE)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
        if isinstance(given["n_p"], LengthRange):
            yield Finding(("n_p",), "modules of a layer are measured at one context length; write one number")
            return
        yield from prompt_conflicts({**values, "n_s": 0}, values["batch_size"], 1)
