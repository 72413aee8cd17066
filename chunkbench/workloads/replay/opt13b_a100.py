"""Step times of OPT-13B on an A100 in the PagedAttention paper, from its printed numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from chunkbench.report.printed import paged_attention
from chunkbench.traffic.lengths import LENGTHS
from chunkbench.workloads.replay.paper_a100 import PEAK_FLOPS, SHARE_OF_PEAK
from chunkbench.workloads.replay.step_time import StepShape

PARAMETERS = 13e9


@dataclass(frozen=True)
class Opt13bA100:
    """A constant, and a time for each sequence that decodes, with which paged memory has the mean batches of Figure 13.

    In the mean a request is in as many steps as its answer has tokens. So batch = rate * answer * time from step to
    step. Assumed: all requests are served at the rates of that figure, and prompts take the time of their FLOPs, 2 for
    each parameter and token, at `SHARE_OF_PEAK`. The paper prints no step times. What others run at these rates is not
    fitted.
    """

    def seconds(self, shape: StepShape) -> float:
        constant, sequence = self._fit
        return constant + sequence * shape.decoding + _PROMPT_TOKEN_S * shape.prompt_tokens

    @cached_property
    def _fit(self) -> tuple[float, float]:
        """Seconds of a step, and for each sequence."""
        (few, few_s), (many, many_s) = map(_step, ("sharegpt", "alpaca"))
        sequence = (many_s - few_s) / (many - few)
        return few_s - sequence * few, sequence

    @property
    def words(self) -> str:
        constant, sequence = self._fit
        return (
            f"OPT-13B on an A100, fitted to the batches of PagedAttention's Figure 13: {constant * 1e3:.1f} ms and "
            f"{sequence * 1e3:.2f} ms per decoding sequence; assumed: {_PROMPT_TOKEN_S * 1e3:.2f} ms per prompt token"
        )


_PROMPT_TOKEN_S = 2 * PARAMETERS / (PEAK_FLOPS * SHARE_OF_PEAK)


def _step(traffic: str) -> tuple[float, float]:
    """Printed mean batch, and the seconds of a step without prompts that give it."""
    names = ("figure", "traffic", "manager")
    (row,) = (row for row in paged_attention() if tuple(row[name] for name in names) == ("13", traffic, "paged"))
    batch, per_s, lengths = float(row["value"]), float(row["rate"]) / 60, LENGTHS[traffic]
    prompts = per_s * lengths.prompt.mean * _PROMPT_TOKEN_S  # share of the time
    return batch, batch * (1 - prompts) / (per_s * lengths.answer.mean)
