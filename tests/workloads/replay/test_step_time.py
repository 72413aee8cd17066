"""The constant step time, and the time of copies."""

from __future__ import annotations

import pytest

from chunkbench.attention.manager import Reads
from chunkbench.workloads.replay.step_time import Constant, StepShape, WithSwaps


def test_a_constant() -> None:
    assert Constant(0.02).seconds(StepShape(3, Reads(0, 0, 0), 512)) == 0.02
    assert "20 ms" in Constant(0.02).words
    with pytest.raises(ValueError, match="more than 0 s"):
        Constant(0.0)


def test_only_swapped_tokens_take_time_to_copy() -> None:
    model = WithSwaps(Constant(0.02), 0.001, "from a test")
    assert model.seconds(StepShape(3, Reads(9, 9, 18), 512, sampled=4)) == 0.02
    assert model.seconds(StepShape(3, Reads(0, 0, 0), swapped_tokens=30)) == pytest.approx(0.05)
    assert model.words == f"{Constant(0.02).words}; from a test"
