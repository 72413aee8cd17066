"""Experiments on servers: their keys and axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ByteSize, Field, ValidationInfo, field_validator

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.fields import Count, ImplementationId, Positive, Seconds
from chunkbench.experiment.point import Case, Point
from chunkbench.experiment.reading import Reading
from chunkbench.experiment.sweep import N_P, N_S, REPLAYED, Required, SweepRules, wrong_prompts
from chunkbench.experiment.values import AxisValue, Finding, Findings, LengthRange

_FROM_MODEL = "follows from model; leave it out"
_OWN = "is the server's own; leave it out"
_UNUSED = ("protocols", "caches", "modes", "expect", "min_rounds", "max_rounds", "pages", "tolerance")


class ServingExperiment(TimedExperiment):
    """Systems that take turns to answer the same requests; one case for each point and system."""

    timed: ClassVar[bool] = False

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

    @field_validator(*_UNUSED)
    @classmethod
    def _is_not_for_servers(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[str(info.field_name)]
        if value != field.get_default(call_default_factory=True):
            raise Findings(Finding((), "does not apply to `kind: serving`; leave it out", True))
        return value

    def cases(self, point: Point) -> tuple[Case, ...]:
        """One case for each system."""
        return tuple(Case(point, system, "strict", "cold", "eager") for system in self.implementations)


def _wrong(values: Mapping[str, AxisValue]) -> Iterator[Finding]:
    if isinstance(values["n_p"], LengthRange):
        yield Finding(("n_p",), "prompts of different lengths are not supported by `kind: serving`; give one length")
    elif "load" in values and "rate" in values:
        yield Finding(("load",), "cannot be used together with rate; keep one", True)
    else:
        # Requests are not a batch: there may be more or fewer of them than prefixes.
        drawn = {name: value for name, value in values.items() if name != "batch_size"}
        yield from wrong_prompts(drawn if "tree" in values else {**drawn, "batch_size": values.get("prompts", 1)})


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
