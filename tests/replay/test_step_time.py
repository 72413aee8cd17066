"""The constant step time."""

from __future__ import annotations

import pytest

from chunkbench.kvcache.managers.manager import Reads
from chunkbench.replay.step_time import Constant, StepShape


def test_a_constant() -> None:
    assert Constant(0.02).seconds(StepShape(3, Reads(0, 0, 0), 512)) == 0.02
    assert "20 ms" in Constant(0.02).words
    with pytest.raises(ValueError, match="more than 0 s"):
        Constant(0.0)
