"""What a run on a cluster costs beside a local run, and how busy it keeps the machines.

Points that wait instead of measuring: (1) many that wait for nothing, by the local executor and on one raylet in turns:
the difference is what a job costs; (2) 64 that wait one second, over 8 raylets of this host, after one point on each:
the share of the time between the first start and the last end in which a raylet was busy.
Run it with `python -m benchmarks.ray_overhead` in an environment with Ray (`make test` makes one).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from chunkbench.runner.executor import Executor, LocalExecutor
from chunkbench.runner.run import run_experiment
from chunkbench.runner.target import resolve
from tests.cluster.conftest import Raylets, executor_of, fleet_of, waiting
from tests.cluster.listening import Heard

JOBS, TURNS = 200, 5
RAYLETS, WAITS = 8, 64


def seconds_per_job(folder: Path, executor: Executor, points: int) -> float:
    """Mean seconds between the ends of two jobs."""
    heard: list[float] = []

    class Listener(Heard):
        def point_finished(self, *_: object) -> None:
            heard.append(time.monotonic())

    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    run_experiment(waiting(folder, points), executor, out, False, [], Listener())
    return (heard[-1] - heard[0]) / (points - 1)


def overhead(folder: Path) -> None:
    """Print what a job costs."""
    raylets = Raylets(folder)
    raylets.add("m1")
    (folder / "seconds").write_text("0")
    os.environ["CHUNKBENCH_TEST_FOLDER"] = str(folder)
    fleet = fleet_of(raylets, Heard())
    experiment = waiting(folder, JOBS)
    differences, local_ms = [], []
    for _ in range(TURNS):
        local = seconds_per_job(folder, LocalExecutor(resolve(experiment)), JOBS)
        spread = seconds_per_job(folder, executor_of(fleet, experiment), JOBS)
        local_ms.append(1e3 * local)
        differences.append(1e3 * (spread - local))
    fleet.close()
    raylets.ray.shutdown()
    print(
        f"a job costs {statistics.median(differences):.1f} ms more on a raylet than locally "
        f"({min(differences):.1f} to {max(differences):.1f} in {TURNS} turns of {JOBS} jobs; "
        f"locally {statistics.median(local_ms):.1f} ms)"
    )


def busy(folder: Path) -> None:
    """Print how busy every raylet was."""
    raylets = Raylets(folder)
    raylets.add(*(f"m{number}" for number in range(RAYLETS)))
    heard = Heard()
    fleet = fleet_of(raylets, heard)
    (folder / "seconds").write_text("3")  # long enough for every raylet to be up
    started = time.monotonic()
    first = waiting(folder, RAYLETS)
    run_experiment(first, executor_of(fleet, first), folder / "first", False, [], heard)
    print(f"{RAYLETS} raylets were up and measured once after {time.monotonic() - started:.1f} s")
    (folder / "measured.log").unlink()
    (folder / "seconds").write_text("1")
    experiment = waiting(folder, WAITS)
    run_experiment(experiment, executor_of(fleet, experiment), folder / "run", False, [], heard)
    begins, ends = raylets.log("begin"), raylets.log("end")
    whole = max(at for _, _, at in ends) - min(at for _, _, at in begins)
    begun = {n_p: at for n_p, _, at in begins}
    spent: dict[str, float] = {}
    for n_p, machine, at in ends:
        spent[machine] = spent.get(machine, 0.0) + at - begun[n_p]
    shares = sorted(seconds / whole for seconds in spent.values())
    print(
        f"{WAITS} jobs of 1 s over {len(shares)} raylets took {whole:.2f} s from the first start to the last end; "
        f"a raylet was busy for {shares[0]:.1%} to {shares[-1]:.1%} of it"
    )
    fleet.close()
    raylets.ray.shutdown()


if __name__ == "__main__":
    for part in (overhead, busy):
        with tempfile.TemporaryDirectory() as temporary:
            part(Path(temporary))
