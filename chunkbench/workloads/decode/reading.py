"""Experiments of decode attention: their keys and axes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.reading import Reading
from chunkbench.experiment.sweep import N_P, N_S, REPLAYED, SweepRules, wrong_prompts

RULES = SweepRules(
    wrong=wrong_prompts,
    required=(N_P, N_S),
    foreign={
        "model": "is only for `kind: modules` and `kind: serving`; write heads, kv_heads and head_dim instead",
        **REPLAYED,
        **dict.fromkeys(
            ("load", "rate"), "is only for `kind: serving`, whose requests arrive one by one; leave it out"
        ),
    },
)


class DecodeExperiment(TimedExperiment):
    """Implementations of decode attention, timed side by side."""

    figure: Literal["speedup", "token_rate", "advantage", "checks"] = Field(
        "speedup",
        description="for kind decode: speed-ups, token rates, a map of the advantage over n_s and b, or checks: no "
        "figure, and a list of what is right instead of a comparison",
    )


READING = Reading(
    experiment=DecodeExperiment,
    summary="decode attention, timed",
    rules=RULES,
)
