from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file; what several of them share is found beside them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def as_in_a_worker() -> Iterator[None]:
    """It keeps what its libraries made out of the collections before rounds; with pytest's heap they take long."""
    gc.freeze()
    yield
    gc.unfreeze()
