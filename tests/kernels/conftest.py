"""Numbers of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunkbench.bench.measure.profiler import thread_count


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with thread_count(request.param):
        yield request.param
