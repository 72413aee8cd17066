from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def freeze_heap() -> Iterator[None]:
    """Like a worker, exclude existing objects from the garbage collections before rounds: pytest's heap is large."""
    gc.freeze()
    yield
    gc.unfreeze()
