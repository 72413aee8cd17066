"""Experiments that replay requests: their keys and the rules of their axes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from chunkbench.bench.experiment.fields import ImplementationId, Whole
from chunkbench.bench.experiment.findings import Finding
from chunkbench.bench.experiment.sessions import REQUESTS, RequestExperiment, request_conflicts
from chunkbench.bench.experiment.spec import BASELINE, FROM_MODEL
from chunkbench.bench.experiment.sweep import Required
from chunkbench.bench.experiment.values import LengthRange, Share, parse_duration
from chunkbench.server.scheduling import ORDERS
from chunkbench.text_file import did_you_mean
from chunkbench.traffic.generated import DRAWN_SYSTEM_PROMPTS, GENERATED
from chunkbench.workloads.replay.result import ReplayPoint

PAPER, PAGED_ATTENTION = "paper", "paged-attention"
_REQUESTS = Required(
    frozenset({"rate", "traffic"}), "rate (requests per minute) or traffic is missing, here and under defaults"
)


class ReplayExperiment(RequestExperiment[ReplayPoint]):
    """An experiment in which managers get the same requests on a virtual clock. Each point and manager is a case."""

    POINT = ReplayPoint
    REQUIRED = (_REQUESTS,)
    REFUSED = FROM_MODEL | {
        "load": "is only for `kind: serving`; give a rate",
        "threads": "does not matter to a replay; leave it out",
    }

    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "float16"
    baseline: ImplementationId = Field("prefix_tree", validate_default=True, description=BASELINE)
    requests: Annotated[Whole, Field(ge=1)] = Field(300, description=REQUESTS)
    prompt_budget: Annotated[Whole, Field(ge=1)] = Field(512, description="largest number of prompt tokens in a step")
    longest: Annotated[Whole, Field(ge=1)] | None = Field(
        None,
        description=(
            "largest number of tokens of a sequence; longer requests are left out; default: as many as the "
            "longest request has"
        ),
    )
    step_time: str = Field(
        PAPER,
        description="time of a step: paper (Llama2-7B on the paper's A100), paged-attention (OPT-13B in that paper), "
        "a duration such as 20ms, or the directory of a serving run, to whose steps the times are fitted",
    )
    truncate_prompt_tokens: Annotated[Whole, Field(ge=1)] | None = Field(
        None, description="keep only this number of a prompt's last tokens"
    )

    @field_validator("step_time")
    @classmethod
    def _step_time_is_known(cls, value: str) -> str:
        if value in (PAPER, PAGED_ATTENTION) or os.path.isdir(value):
            return value
        with contextlib.suppress(ValueError):
            if parse_duration(value) > 0:
                return value
        known = "paper, paged-attention, a duration such as 20ms, or the directory of a serving run"
        raise ValueError(f"{value!r} is none of these: {known}")

    @classmethod
    def conflicts(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
        order = values["schedule"] or "fcfs"
        if order not in ORDERS:
            yield Finding(("schedule",), f"there is no order {order!r}{did_you_mean(order, list(ORDERS))}")
        largest = max(values["block_size"], values["chunk_size"])
        if values["memory"] is not None and values["memory"] < largest:
            told = f"{values['memory']} tokens do not hold one block or chunk of {largest} tokens"
            yield Finding(("memory",), told)
        if "samples" in given and "beams" in given:
            yield Finding(("beams",), "cannot be used together with samples; keep one", True)
        if given.get("traffic", "fixed") == "fixed":
            yield from _fixed_conflicts(given, values)
        else:
            yield from _traffic_conflicts(given, given["traffic"])


def _traffic_conflicts(given: Mapping[str, Any], traffic: str) -> Iterator[Finding]:
    """Conflicts if traffic sets the lengths of requests."""
    found = os.path.isfile(traffic)  # `isfile` is also False for names that no file can have
    if traffic not in GENERATED and not found and not Path(traffic).suffix and "/" not in traffic:
        known = did_you_mean(traffic, list(GENERATED))
        yield Finding(("traffic",), f"there is no traffic {traffic!r}, and no file with this name{known}")
    elif traffic not in GENERATED and not found:
        yield Finding(("traffic",), f"there is no file {traffic!r} here: {Path(traffic).absolute().parent}")
    for axis in ("n_p", "n_c", "tree", *(() if traffic in DRAWN_SYSTEM_PROMPTS else ("n_s", "prompts"))):
        if axis in given:
            yield Finding((axis,), f"follows from traffic: {traffic}; leave it out", True)
    if traffic in GENERATED and "rate" not in given:
        yield Finding(("traffic",), f"{traffic} needs a rate (requests per minute)")
    if isinstance(given.get("n_s"), Share):
        yield Finding(("n_s",), f"must be a number of tokens: prompts of {traffic} have different lengths")


def _fixed_conflicts(given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
    if isinstance(given.get("n_p"), LengthRange):
        yield Finding(("n_p",), "prompts of different lengths are not supported by traffic: fixed; give one length")
    elif "n_p" not in given or ("n_s" not in given and "tree" not in given):
        yield Finding(("n_p",), "traffic: fixed needs n_p, and n_s or tree; or name other traffic")
    elif "rate" not in given:
        yield Finding(("rate",), "is missing, here and under defaults: requests per minute")
    else:
        yield from request_conflicts(given, values)
