"""Being on time, and leaving the process as it was."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time

from chunkbench.traffic.load.timing import at_due_times, punctual


def test_the_process_is_left_as_it_was() -> None:
    before = gc.isenabled(), sys.getswitchinterval()
    with punctual():
        assert not gc.isenabled()
        assert sys.getswitchinterval() < before[1]
    assert (gc.isenabled(), sys.getswitchinterval()) == before


def test_times_are_met_in_order_and_never_early() -> None:
    dues = [time.perf_counter() + wait for wait in (0.0, 0.05, 0.05, 0.1)]
    launched: list[tuple[int, float]] = []
    asyncio.run(at_due_times(dues, lambda number: launched.append((number, time.perf_counter()))))
    assert [number for number, _ in launched] == [0, 1, 2, 3]
    assert all(at >= due for (_, at), due in zip(launched, dues, strict=True))


def test_the_waiting_thread_ends_when_the_measurement_is_cancelled() -> None:
    async def run() -> None:
        task = asyncio.create_task(at_due_times([time.perf_counter() + 60], lambda number: None))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    started = time.perf_counter()
    asyncio.run(run())
    assert time.perf_counter() - started < 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")]
