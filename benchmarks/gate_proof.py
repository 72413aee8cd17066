"""Can the gate be believed? Runs it again and again on code that did not change, or that was slowed down on purpose.

    python benchmarks/gate_proof.py --runs 200 --load        unchanged, while a load comes and goes
    python benchmarks/gate_proof.py --runs 60 --slow 10%      chunk_attn made 10% slower
    python benchmarks/gate_proof.py --summary                the tables of docs/regression.md

Every run is one line of results/gate-proof/runs.jsonl: an interrupted proof goes on where it was. The recording that
all are compared with is made first, in results/gate-proof/recording, on the machine as it is then.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from chunkbench.analysis.compare import Options
from chunkbench.cli.progress import RunProgress
from chunkbench.experiment import Experiment, load_experiment
from chunkbench.runner.gate import gate, repeater
from chunkbench.runner.run import Target, resolve
from chunkbench.store import open_runs

FOLDER = Path("results/gate-proof")
SLOWED = "chunk_attn"
PROCESSES, AGAIN, RECORDED = 10, 2, 40
LOAD = """
import random, sys, time
import numpy as np
rng, memory = random.Random(int(sys.argv[1])), np.zeros(1 << 24)
while True:  # half of the time idle, else one CPU busy with arithmetic or with reading memory
    end, read = time.monotonic() + rng.uniform(0.5, 8), rng.random() < 0.5
    while time.monotonic() < end:
        memory.sum() if read else sum(range(100_000))
    time.sleep(rng.uniform(0.5, 8))
"""


def record(experiment: Experiment, target: Target) -> Path:
    path = FOLDER / "recording"
    if not path.exists():
        print(f"recording {RECORDED} processes", flush=True)
        with RunProgress(quiet=True) as progress, repeater(experiment, target, path, [], progress) as measuring:
            longer = experiment.model_copy(update={"budget_s": experiment.budget_s * RECORDED / PROCESSES})
            measuring.measure(longer, path, RECORDED)
    return path


def one_run(experiment: Experiment, target: Target, recording: Path, slow: float) -> dict[str, Any]:
    worker = [sys.executable, str(Path(__file__).with_name("slowed_worker.py")), SLOWED, str(slow)] if slow else None
    out = Path(tempfile.mkdtemp(prefix="gate-proof-"))
    started = time.monotonic()
    try:
        with RunProgress(quiet=True) as progress, repeater(experiment, target, out, [], progress, worker) as measuring:
            found = gate(experiment, measuring, open_runs(recording), Options(), PROCESSES, AGAIN, out, target)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    assert found.comparison is not None
    cases = [
        {"implementation": c.implementation, "n_s": c.axes["n_s"], "verdict": c.verdict, "ratio": c.ratio}
        | {"low": c.low, "high": c.high, "remeasured": c.remeasured, "reason": c.reason}
        for c in found.comparison.cases
    ]
    return {"seconds": round(time.monotonic() - started, 1), "exit_code": found.comparison.exit_code, "cases": cases}


def lines() -> list[dict[str, Any]]:
    path = FOLDER / "runs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_wrong(case: dict[str, Any], slow: float) -> bool:
    if case["verdict"] == "slower":
        return not (slow and case["implementation"] == SLOWED)
    return bool(case["verdict"] == "faster")


def summary() -> None:
    groups: dict[tuple[float, bool], list[dict[str, Any]]] = defaultdict(list)
    for line in lines():
        groups[line["slow"], line["load"]].append(line)
    for (slow, load), runs in sorted(groups.items()):
        verdicts = Counter(case["verdict"] for run in runs for case in run["cases"])
        times = sorted(run["seconds"] for run in runs)
        wrong = sum(any(is_wrong(case, slow) for case in run["cases"]) for run in runs)
        slowed = [[c for c in run["cases"] if c["implementation"] == SLOWED] for run in runs]
        found = sum(any(case["verdict"] == "slower" for case in cases) for cases in slowed)
        every = sum(all(case["verdict"] == "slower" for case in cases) for cases in slowed)
        print(
            f"slowed by {slow:.0%}, {'with' if load else 'without'} load: {len(runs)} runs; wrong {wrong}; "
            f"slow-down found in {found}, in every case of it {every}; seconds: median {times[len(times) // 2]}, "
            f"longest {times[-1]}; cases {dict(verdicts)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="how many there shall be in the end")
    parser.add_argument("--slow", default="0%", help="by how much, e.g. 10%%")
    parser.add_argument("--load", action="store_true", help="with a background load that comes and goes")
    parser.add_argument("--summary", action="store_true", help="print what was found so far")
    arguments = parser.parse_args()
    if arguments.summary:
        summary()
        return
    slow = float(arguments.slow.rstrip("%")) / 100
    experiment = load_experiment("gate")
    target = resolve(experiment)
    FOLDER.mkdir(parents=True, exist_ok=True)
    recording = record(experiment, target)
    done = sum(line["slow"] == slow and line["load"] == arguments.load for line in lines())
    load = subprocess.Popen([sys.executable, "-c", LOAD, str(random.randrange(1000))]) if arguments.load else None
    try:
        for number in range(done + 1, arguments.runs + 1):
            result = {"slow": slow, "load": arguments.load} | one_run(experiment, target, recording, slow)
            with (FOLDER / "runs.jsonl").open("a") as file:
                file.write(json.dumps(result) + "\n")
            words = ", ".join(
                f"{c['implementation']}/{c['n_s']} {c['verdict']} {c['ratio'] or 0:.3f}" for c in result["cases"]
            )
            print(f"{number}/{arguments.runs} {result['seconds']} s: {words}", flush=True)
    finally:
        if load is not None:
            load.kill()


if __name__ == "__main__":
    main()
