"""Numbers of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunkbench.bench.measure.profiler import thread_count


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Unless a test says more: threads that wait for each other make small tests slow where others compute, too."""
    with thread_count(1):
        yield


@pytest.fixture(params=[1, 2, 3])
def threads(one_thread: None, request: pytest.FixtureRequest) -> Iterator[int]:
    with thread_count(request.param):
        yield request.param
