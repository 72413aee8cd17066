from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkbench.baselines import registry

FAKES = Path(__file__).parent / "fakes"


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registers the failing implementations here and in the workers that the test starts."""
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), *([inherited] if inherited else [])]))
    monkeypatch.syspath_prepend(FAKES)
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()
