"""Experiments on servers: their keys, and rules for their axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field, ValidationInfo, field_validator

from chunkbench.bench.experiment.fields import ImplementationId, Positive, Whole
from chunkbench.bench.experiment.findings import Finding
from chunkbench.bench.experiment.sessions import RequestExperiment, request_conflicts
from chunkbench.bench.experiment.spec import BASELINE, FROM_MODEL, N_P, N_S
from chunkbench.bench.experiment.sweep import Required, Sweep
from chunkbench.bench.experiment.values import LengthRange
from chunkbench.traffic import read_texts
from chunkbench.workloads.serving.result import ServingPoint
from chunkbench.workloads.serving.tasks import Task

_HOW_MANY = ("load", "rate", "clients")
_RATE = Required(
    frozenset(_HOW_MANY),
    "load (percent of the reference's capacity) or rate (requests per minute) is missing, here and under defaults; or"
    " give clients",
)


class ServingExperiment(RequestExperiment[ServingPoint]):
    """An experiment on servers that take turns to answer the same requests. Each system at each point is a case."""

    POINT = ServingPoint
    REQUIRED = (N_P, N_S, _RATE)
    REFUSED = FROM_MODEL | dict.fromkeys(("chunk_size", "block_size"), "is set by the server itself; leave it out")

    baseline: ImplementationId = Field("chunk_llama", validate_default=True, description=BASELINE)
    reference: ImplementationId = Field(
        "vllm",
        description=("the system to whose capacity `load` refers; if that system cannot run, the first that can"),
    )
    arrivals: Literal["poisson", "gamma", "constant"] = Field(
        "poisson", description="distribution of the gaps between due times: poisson, gamma, constant"
    )
    spread: Positive = Field(1.0, description="for gamma: standard deviation of the gaps over their mean")
    layers: Annotated[Whole, Field(ge=1)] | None = Field(
        None, description=("number of layers of the model; default: all")
    )
    vocabulary: Annotated[Whole, Field(ge=2)] = Field(2048, description="number of different token ids of the model")
    kv_memory: ByteSize | None = Field(
        None,
        description=(
            "K/V memory of each system, such as 4GiB; default: enough for batch_size requests of the longest point"
        ),
    )
    texts: str = Field(
        "",
        description="name of a bundled set of texts, or a file with texts. Prompts are cut from these texts: shared "
        "tokens from the beginnings of texts, other tokens from questions; default: random token ids",
    )
    equal_answers: Annotated[Whole, Field(ge=0, le=200)] = Field(
        0,
        description=(
            "number of texts for which the servers' answers in float32 are compared with the answers of transformers, "
            "before the clock starts"
        ),
    )
    constrained: Task = Field(
        "",
        description="a task whose answers follow a regular expression. character and facts ask for JSON; in share, "
        "the axis forced sets the percentage of bytes without a choice. Prompts have at most n_p tokens, answers at "
        "most n_c",
    )
    endpoint: str = Field("", description="URL of the server that the system `endpoint` measures")

    @classmethod
    def _more_findings(cls, raw: Mapping[str, Any], sweep: Sweep, report_unused: bool) -> Iterator[Finding]:
        task = raw.get("constrained", "")
        if any((values["forced"] is not None) != (task == "share") for values in sweep.combinations):
            told = "the axis forced (percent) is missing" if task == "share" else "forced is an axis of `share` only"
            yield Finding(("constrained",) if "constrained" in raw else ("sweep",), told)
        shared = (values["n_s"] != 0 or values["prompts"] != 1 for values in sweep.combinations)
        if task and (raw.get("texts") or any(shared)):
            told = "prompts come from the task and share nothing: give n_s: 0, and no texts, prompts or tree"
            yield Finding(("constrained",), told)
        if task and any(values["samples"] or values["beams"] for values in sweep.combinations):
            yield Finding(("constrained",), "cannot be used together with samples or beams")

    @field_validator("texts")
    @classmethod
    def _texts_can_be_read(cls, value: str) -> str:
        if value:
            read_texts(value)
        return value

    @field_validator("equal_answers")
    @classmethod
    def _answers_have_questions(cls, value: int, info: ValidationInfo) -> int:
        if value and not info.data.get("texts"):
            raise ValueError("needs texts: a set or a file of questions")
        return value

    @classmethod
    def conflicts(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
        if isinstance(given["n_p"], LengthRange):
            told = "prompts of different lengths are not supported by `kind: serving`; give one length"
            yield Finding(("n_p",), told)
        elif len(both := [axis for axis in _HOW_MANY if axis in given]) > 1:
            yield Finding((both[0],), f"cannot be used together with {both[1]}; keep one", True)
        elif "samples" in given and "beams" in given:
            yield Finding(("beams",), "cannot be used together with samples; keep one", True)
        elif (answers := values["samples"] or values["beams"] or 1) > values["batch_size"]:
            axis = "samples" if values["samples"] else "beams"
            told = f"{answers} answers of a request do not fit into a batch of {values['batch_size']}; raise batch_size"
            yield Finding((axis,), told, True)
        else:
            yield from request_conflicts(given, values)
