"""The step time that is fitted to the PagedAttention paper's batches."""

from __future__ import annotations

import pytest

from chunkbench.attention.manager import Reads
from chunkbench.workloads.replay.paper_a100 import Opt13bA100
from chunkbench.workloads.replay.step_time import StepShape


@pytest.mark.parametrize(
    ("batch", "per_s", "prompt", "answer"), [(30.42, 2.0, 161, 338), (132.44, 30.0, 19, 58)], ids=["sharegpt", "alpaca"]
)
def test_the_printed_batches_come_back(batch: float, per_s: float, prompt: int, answer: int) -> None:
    """In a steady state as many requests come in a step as end in it, and each is in as many steps as it has tokens."""
    model, nothing = Opt13bA100(), Reads(0, 0, 0)

    def step_s(requests: float) -> float:
        without = model.seconds(StepShape(round(requests), nothing))
        more = model.seconds(StepShape(round(requests) + 1, nothing))
        decoding = without + (more - without) * (requests - round(requests))
        token_s = model.seconds(StepShape(0, nothing, 1000)) - model.seconds(StepShape(0, nothing))
        return decoding / (1 - per_s * prompt * token_s / 1000)

    assert per_s * answer * step_s(batch) == pytest.approx(batch)


def test_words_name_the_fit() -> None:
    words = Opt13bA100().words
    assert all(
        part in words for part in ("OPT-13B on an A100", "fitted", "Figure 13", "per decoding sequence", "assumed")
    )
