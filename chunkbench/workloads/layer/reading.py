"""Experiments on the modules of a decoder layer: `model` names the layer's model and gives heads and head sizes."""

from __future__ import annotations

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.reading import Reading
from chunkbench.experiment.sweep import N_P, REPLAYED, Required, SweepRules, wrong_prompts
from chunkbench.workloads.layer.registry import MODULES

_FROM_MODEL = "follows from model; leave it out"
_SHARING = "cannot be used with `kind: modules`, whose modules share nothing; leave it out"
_MODEL = Required(frozenset({"model"}), "model is missing, here and under defaults; it names the model of the layer")

READING = Reading(
    experiment=TimedExperiment,
    summary="the modules of a decoder layer",
    rules=SweepRules(
        wrong=wrong_prompts,
        required=(_MODEL, N_P),
        foreign={
            **dict.fromkeys(("heads", "kv_heads", "head_dim"), _FROM_MODEL),
            **dict.fromkeys(("n_s", "prompts", "tree", "chunk_size", "block_size"), _SHARING),
            **REPLAYED,
            **dict.fromkeys(("load", "rate"), "is only for `kind: serving`; leave it out"),
        },
        implied={"n_s": 0},
    ),
    defaults={"implementations": tuple(MODULES.names()), "baseline": "self_attention"},
)
