"""Experiments of `kind: answers`: their keys and the rules of their axes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from chunkbench.bench.experiment import Experiment
from chunkbench.bench.experiment.fields import ImplementationId, Whole
from chunkbench.bench.experiment.findings import Finding
from chunkbench.bench.experiment.spec import BASELINE, FROM_MODEL, N_P
from chunkbench.bench.experiment.values import LengthRange
from chunkbench.workloads.answers.result import AnswersPoint


class AnswersExperiment(Experiment[AnswersPoint]):
    """An experiment that compares choices of the heads that keep all tokens. All choices get the same contexts. Each
    point and choice is a case.
    """

    POINT = AnswersPoint
    REQUIRED = (N_P,)
    REFUSED = FROM_MODEL

    baseline: ImplementationId = Field("all_heads", validate_default=True, description=BASELINE)
    contexts: Annotated[Whole, Field(ge=1)] = Field(3, description="number of contexts of each length")
    heads: Annotated[str, Field(max_length=4096)] | None = Field(
        None,
        description="a file that `chunkbench find-heads` wrote; default: the run finds the heads itself, in a minute",
    )
    tested: Annotated[Whole, Field(ge=2)] | None = Field(
        None,
        description="number of random tokens in the test for retrieval heads; default: 2500, but at most a quarter of "
        "the model's positions",
    )
    held: Annotated[Whole, Field(ge=1)] = Field(
        128, description="number of tokens after the context at which the predicted next tokens are compared"
    )

    @field_validator("heads")
    @classmethod
    def _heads_are_there(cls, value: str | None) -> str | None:
        if value is not None and not os.path.isfile(value):
            raise ValueError(f"there is no file {value!r} here; `chunkbench find-heads MODEL` writes one")
        return value

    @classmethod
    def conflicts(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
        if isinstance(given.get("n_p"), LengthRange):
            yield Finding(("n_p",), "has one length for each context; give a list for several lengths")
        if "batch_size" in given:
            yield Finding(("batch_size",), "is 10: a question for each needle; leave it out", True)
        if not values["model"].folder and values["model"].name != "smollm2-135m":
            yield Finding(
                ("model",), "has random weights, which answer nothing; name smollm2-135m, or the folder of a checkpoint"
            )
