"""A run on a cluster whose driver is killed at random moments: resumed as often as needed, it ends complete."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from chunkbench.bench.store import open_run
from tests.plugins.ray.conftest import ON_NODES, Raylets, waiting

KILLS = 20
POINTS = 16 * KILLS
"""More than three machines measure between the start of a driver and its end, so that every kill meets a live run."""
DRIVER = """
import sys
import ray
ray.init(sys.argv[1], runtime_env={"worker_process_setup_hook": "waiting_kind.add"}, log_to_driver=False)
import waiting_kind
waiting_kind.add()
from chunkbench.cli.main import main
sys.argv[1:] = sys.argv[2:]
main()
"""


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(120 + 40 * KILLS)
def test_a_driver_that_is_killed_at_random_moments(raylets: Raylets, tmp_path: Path) -> None:
    raylets.add("a", "b", "c")
    (raylets.folder / "seconds").write_text("0.8")
    waiting(tmp_path, POINTS)
    (tmp_path / "driver.py").write_text(DRIVER)
    run = tmp_path / "run"
    words = [sys.executable, str(tmp_path / "driver.py"), raylets.ray.address]
    words += ["run", str(tmp_path / "waiting.yaml"), "--on", "ray", "--out", str(run), "-q"]
    environment = os.environ | {"PYTHONPATH": str(ON_NODES)}
    rng = random.Random(os.urandom(8))
    moments = []
    for _ in range(KILLS):
        resume = ["--resume"] if (run / "manifest.json").exists() else []
        driver = subprocess.Popen([*words, *resume], env=environment, start_new_session=True)
        moments.append(rng.uniform(0.5, 8.0))
        time.sleep(moments[-1])
        assert driver.poll() is None, "the run ended before it was killed"
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        time.sleep(rng.uniform(0, 1.0))
    resume = ["--resume"] if (run / "manifest.json").exists() else []
    done = subprocess.run([*words, *resume], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"killed after {moments}: {done.stderr}"
    recorded = open_run(run)
    assert len((run / "cases.jsonl").read_text().splitlines()) == POINTS
    assert set(Counter(case.key for case in recorded.cases).values()) == {1}
    assert len(recorded.cases) == POINTS
    assert recorded.manifest.interrupted is False
