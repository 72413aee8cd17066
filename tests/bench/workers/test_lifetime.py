"""A worker ends with the process that started it, also while it still imports torch."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

DRIVER = """
import os, sys
from pathlib import Path
from chunkbench.bench.runner.client import WorkerProcess

folder = Path(sys.argv[1])
path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
WorkerProcess(folder / "worker.log", "decode", environment={**os.environ, "PYTHONPATH": path})
"""
TORCH = """
import time
from pathlib import Path

Path(__file__).with_name("importing").touch()
time.sleep(60)
"""
"""Takes torch's place in the worker: an import that does not end, so only the kernel can end the worker."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a process with its parent")


def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> bool:
    end = monotonic() + limit_s
    while not condition() and monotonic() < end:
        sleep(0.005)
    return condition()


def has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[psutil.Process]:
    """A process that starts a worker and waits for its first reply."""
    (tmp_path / "torch.py").write_text(TORCH)
    process = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


@pytest.mark.parametrize("importing", [False, True], ids=["at once", "while torch is imported"])
def test_a_worker_ends_when_its_driver_is_killed(driver: psutil.Process, importing: bool, tmp_path: Path) -> None:
    assert wait_until(lambda: bool(driver.children()))
    (worker,) = driver.children()
    try:
        assert not importing or wait_until((tmp_path / "importing").exists)
        driver.kill()
        assert wait_until(lambda: has_ended(worker), 10)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
