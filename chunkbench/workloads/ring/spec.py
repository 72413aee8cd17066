"""Experiments on attention over several ranks: their keys and the rules of their axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

from chunkbench.bench.experiment import Experiment
from chunkbench.bench.experiment.fields import ImplementationId, Positive, Whole
from chunkbench.bench.experiment.findings import Finding, show
from chunkbench.bench.experiment.spec import BASELINE, N_P
from chunkbench.bench.experiment.values import LengthRange
from chunkbench.text_file import did_you_mean
from chunkbench.workloads.ring.result import RingPoint


class Accelerator(BaseModel):
    """A device for which times are computed from its rates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=40)]
    tflops: Positive = Field(description="10^12 FLOP/s in 16-bit numbers")
    gb_per_s: Positive = Field(description="10^9 bytes/s that the device can send to the next one")


class RingExperiment(Experiment[RingPoint]):
    """An experiment that measures schemes of several ranks in turns. Each point and scheme is a case."""

    POINT = RingPoint
    REQUIRED = (N_P,)

    baseline: ImplementationId = Field("one_process", validate_default=True, description=BASELINE)
    ring_rounds: Annotated[Whole, Field(ge=3)] = Field(
        5, alias="rounds", description="largest number of passes of each scheme; the budget may end them earlier"
    )
    accelerators: tuple[Accelerator, ...] = Field(
        (),
        max_length=20,
        description="further devices for which times are computed; each has the keys name, tflops and gb_per_s",
    )

    @classmethod
    def nested_keys(cls) -> tuple[str, ...]:
        return tuple(Accelerator.model_fields)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
        known = True
        for axis in ("phase", "mask"):
            words = [word for part in _annotations(axis) for word in get_args(part) if isinstance(word, str)]
            if axis in given and given[axis] not in words:
                known = False
                yield Finding((axis,), f"{show(given[axis])} is not known here{did_you_mean(given[axis][:60], words)}")
        if isinstance(given["n_p"], LengthRange):
            yield Finding(("n_p",), "has one length for each context; give a list for several lengths")
        elif known:
            yield from _conflicts(given, values)
        if values["heads"] % values["kv_heads"]:
            yield Finding(("kv_heads",), f"{values['heads']} heads do not divide into {values['kv_heads']} K/V heads")


def _annotations(axis: str) -> tuple[Any, ...]:
    annotation = RingPoint.model_fields[axis].annotation
    return (annotation, *get_args(annotation))


def _conflicts(given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
    n_p, n_s, ranks = values["n_p"], values["n_s"], values["ranks"]
    if values["phase"] == "prefill":
        if n_p % (2 * ranks):
            yield Finding(("n_p",), f"{n_p} tokens do not divide into 2 equal parts for each of {ranks} ranks")
        if "n_s" in given:
            yield Finding(("n_s",), "is for phase: decode; a prefill has one sequence, all of it split", True)
        if values["batch_size"] != 1:
            yield Finding(("batch_size",), "is 1 for phase: prefill, which has one sequence; leave it out")
        return
    if "mask" in given:
        yield Finding(("mask",), "is for phase: prefill; a decoded token attends to all before it", True)
    if n_s > n_p:
        yield Finding(("n_s",), f"{n_s} is more than n_p = {n_p}")
    elif n_s < ranks or n_s % ranks:
        yield Finding(
            ("n_s",) if "n_s" in given else ("n_p",), f"{n_s} shared tokens do not divide into {ranks} equal parts"
        )
