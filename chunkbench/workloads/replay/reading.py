"""Experiments that replay requests: their keys and axes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, cast

from pydantic import Field, field_validator

from chunkbench.experiment.axes import AXES
from chunkbench.experiment.errors import did_you_mean
from chunkbench.experiment.fields import Count, ImplementationId, Seconds
from chunkbench.experiment.reading import Reading
from chunkbench.experiment.requests import RequestExperiment, wrong_requests
from chunkbench.experiment.sweep import Required, SweepRules
from chunkbench.experiment.units import parse_duration
from chunkbench.experiment.values import AxisValue, Finding, LengthRange
from chunkbench.scheduling import ORDERS
from chunkbench.traces.generated import GENERATED

PAPER = "paper"
_FROM_MODEL = "follows from model; leave it out"


class ReplayExperiment(RequestExperiment):
    """Managers that get the same requests on a virtual clock; one case for each point and manager."""

    baseline: ImplementationId = Field("prefix_tree", validate_default=True, description="reference of the ratios")
    case_limit_s: Seconds = Field(600.0, alias="case_limit", description="a replay that takes longer is a timeout")
    requests: Annotated[Count, Field(ge=1)] = Field(300, description="requests of one arrival seed")
    arrival_seeds: Annotated[Count, Field(ge=1)] = Field(3, description="sequences of due times and requests")
    prompt_budget: Annotated[Count, Field(ge=1)] = Field(512, description="most prompt tokens of a step")
    longest: Annotated[Count, Field(ge=1)] | None = Field(
        None,
        description="tokens of the longest sequence that the server takes; longer requests are left out; "
        "default: the longest request",
    )
    step_time: str = Field(
        PAPER,
        description="time of a step: paper (Llama2-7B on the paper's A100), a duration such as 20ms, or the directory "
        "of a serving run, whose steps it is fitted to",
    )
    swap: bool = Field(False, description="preempted sequences are swapped where the manager can, not computed again")

    @field_validator("step_time")
    @classmethod
    def _step_time_is_known(cls, value: str) -> str:
        if value == PAPER or Path(value).is_dir():
            return value
        with contextlib.suppress(ValueError):
            if parse_duration(value) > 0:
                return value
        raise ValueError(f"{value!r} is neither paper, nor a duration such as 20ms, nor the directory of a serving run")


def _wrong(values: Mapping[str, AxisValue]) -> Iterator[Finding]:
    order = values.get("schedule", "fcfs")
    if order not in ORDERS:
        yield Finding(("schedule",), f"there is no order {order!r}{did_you_mean(str(order), list(ORDERS))}")
    largest = max(int(cast(int, values.get(axis, AXES[axis].default))) for axis in ("block_size", "chunk_size"))
    if int(cast(int, values.get("memory", largest))) < largest:
        yield Finding(("memory",), f"{values['memory']} tokens do not hold one block or chunk of {largest} tokens")
    if "samples" in values and "beams" in values:
        yield Finding(("beams",), "cannot be used together with samples; keep one", True)
    traffic = values.get("traffic", "fixed")
    if traffic == "fixed":
        yield from _wrong_fixed(values)
        return
    if traffic not in GENERATED and not Path(str(traffic)).suffix:
        known = did_you_mean(str(traffic), list(GENERATED))
        yield Finding(("traffic",), f"there is no traffic {traffic!r}, and no file has this name{known}")
    elif traffic not in GENERATED and not Path(str(traffic)).is_file():
        yield Finding(("traffic",), f"there is no file {traffic!r} here: {Path(str(traffic)).absolute().parent}")
    for axis in ("n_p", "n_c", "tree", *(() if traffic in GENERATED else ("n_s", "prompts"))):
        if axis in values:
            yield Finding((axis,), f"follows from traffic: {traffic}; leave it out", True)
    if traffic in GENERATED and "rate" not in values and not values.keys() & {"samples", "beams"}:
        yield Finding(("traffic",), f"{traffic} needs a rate (requests per minute)")
    if isinstance(values.get("n_s"), str):
        yield Finding(("n_s",), f"must be a number of tokens: prompts of {traffic} have different lengths")


def _wrong_fixed(values: Mapping[str, AxisValue]) -> Iterator[Finding]:
    if isinstance(values.get("n_p"), LengthRange):
        yield Finding(("n_p",), "prompts of different lengths are not supported by traffic: fixed; give one length")
    elif "n_p" not in values or ("n_s" not in values and "tree" not in values):
        yield Finding(("n_p",), "traffic: fixed needs n_p, and n_s or tree; or name other traffic")
    elif "rate" not in values and not values.keys() & {"samples", "beams"}:
        yield Finding(("rate",), "is missing, here and under defaults: requests per minute")
    else:
        yield from wrong_requests(values)


READING = Reading(
    experiment=ReplayExperiment,
    summary="replays of requests through cache managers, on a virtual clock",
    rules=SweepRules(
        wrong=_wrong,
        required=(
            Required(
                frozenset({"rate", "traffic"}),
                "rate (requests per minute) or traffic is missing, here and under defaults",
            ),
        ),
        foreign={
            **dict.fromkeys(("heads", "kv_heads", "head_dim"), _FROM_MODEL),
            "load": "is only for `kind: serving`; give a rate",
            "threads": "does not matter to a replay; leave it out",
        },
        implied={"model": "llama2-7b", "dtype": "float16"},
    ),
)
