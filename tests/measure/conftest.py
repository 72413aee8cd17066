from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest imports tests by file, so the folder of the shared module `fake_gpu` must be on the path.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def freeze_heap() -> Iterator[None]:
    """Like a worker, exclude existing objects from the garbage collections before rounds: pytest's heap is large."""
    gc.freeze()
    yield
    gc.unfreeze()
