"""Experiments on servers: their keys and axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import ByteSize, Field

from chunkbench.experiment.fields import Count, ImplementationId, Positive, Seconds
from chunkbench.experiment.reading import Reading
from chunkbench.experiment.requests import RequestExperiment, wrong_requests
from chunkbench.experiment.sweep import N_P, N_S, REPLAYED, Required, SweepRules
from chunkbench.experiment.values import AxisValue, Finding, LengthRange

_FROM_MODEL = "follows from model; leave it out"
_OWN = "is the server's own; leave it out"


class ServingExperiment(RequestExperiment):
    """Systems that take turns to answer the same requests; one case for each point and system."""

    baseline: ImplementationId = Field("chunk_llama", validate_default=True, description="reference of the ratios")
    case_limit_s: Seconds = Field(
        600.0, alias="case_limit", description="an answer that would take longer is a timeout"
    )
    reference: ImplementationId = Field("vllm", description="the system whose capacity `load` is a share of")
    requests: Annotated[Count, Field(ge=1)] = Field(
        24, description="requests of one arrival seed, in proportion more above a load of 100"
    )
    arrival_seeds: Annotated[Count, Field(ge=1)] = Field(3, description="sequences of due times and prompts")
    arrivals: Literal["poisson", "gamma", "constant"] = "poisson"
    spread: Positive = Field(1.0, description="gamma: standard deviation of the gaps over their mean")
    layers: Annotated[Count, Field(ge=1)] | None = Field(None, description="layers of the model; default: all")
    vocabulary: Annotated[Count, Field(ge=2)] = Field(2048, description="token ids of the model")
    kv_memory: ByteSize | None = Field(
        None, description="memory for K/V of every system, as in 4GiB; default: what batch_size requests need"
    )
    endpoint: str = Field("", description="URL of the server that the system `endpoint` measures")


def _wrong(values: Mapping[str, AxisValue]) -> Iterator[Finding]:
    if isinstance(values["n_p"], LengthRange):
        yield Finding(("n_p",), "prompts of different lengths are not supported by `kind: serving`; give one length")
    elif "load" in values and "rate" in values:
        yield Finding(("load",), "cannot be used together with rate; keep one", True)
    else:
        yield from wrong_requests(values)


READING = Reading(
    experiment=ServingExperiment,
    summary="servers under load",
    rules=SweepRules(
        wrong=_wrong,
        required=(
            N_P,
            N_S,
            Required(
                frozenset({"load", "rate"}),
                "load (percent of the reference's capacity) or rate (requests per minute) is missing, "
                "here and under defaults",
            ),
        ),
        foreign={
            **REPLAYED,
            **dict.fromkeys(("heads", "kv_heads", "head_dim"), _FROM_MODEL),
            **dict.fromkeys(("chunk_size", "block_size"), _OWN),
        },
        implied={"model": "small-llama"},
    ),
)
