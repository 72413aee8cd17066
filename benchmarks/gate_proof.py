"""How reliable is the gate? Runs it many times on unchanged code, or on code that is slowed down on purpose.

    python benchmarks/gate_proof.py --runs 200 --load           unchanged, while a load comes and goes
    python benchmarks/gate_proof.py --runs 60 --slow 10%,20%    chunk_attn 10% slower in one point, 20% in the other
    python benchmarks/gate_proof.py --runs 60 --slow 10%,20% --other 3%,5%    and paged_attn_star by 3% and 5%
    python benchmarks/gate_proof.py --summary                   the tables of docs/regression.md

The two points swap their slow-downs at every other run. Every run is one line of
results/recorded/gate-proofs/bundled.jsonl, so an interrupted proof continues. The first call makes the recording in
results/gate-proof; all runs are compared with it. Delete that folder on another machine and after a change of the code.
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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from scipy.stats import binomtest

from chunkbench.cli.progress import RunProgress
from chunkbench.environment.cpu import read_cpu
from chunkbench.environment.revision import git_state
from chunkbench.experiment import Experiment, load_experiment
from chunkbench.regression.compare import Options
from chunkbench.regression.gate import gate
from chunkbench.regression.job import Job, Repeats
from chunkbench.regression.recording import Recording, record, repeater
from chunkbench.runner.target import Target, resolve
from chunkbench.store import open_runs

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "gate-proof"
RUNS = ROOT / "results" / "recorded" / "gate-proofs" / "bundled.jsonl"
SLOWED, OTHER = "chunk_attn", "paged_attn_star"
SLOWED_WORKER = Path(__file__).with_name("slowed_worker.py")
PROCESSES, AGAIN = 12, 3
LOAD = """
import random, sys, time
import numpy as np
rng, memory = random.Random(int(sys.argv[1])), np.zeros(1 << 24)
while True:  # half of the time idle; otherwise one CPU computes or reads memory
    end, read = time.monotonic() + rng.uniform(0.5, 8), rng.random() < 0.5
    while time.monotonic() < end:
        memory.sum() if read else sum(range(100_000))
    time.sleep(rng.uniform(0.5, 8))
"""


def recording(experiment: Experiment, target: Target) -> Path:
    path = FOLDER / "recording"
    if not path.exists():
        print("recording", flush=True)
        with RunProgress(quiet=True) as progress, repeater(Job(experiment, target, path, progress)) as measuring:
            record(measuring, PROCESSES, 1)
    return path


def one_run(experiment: Experiment, target: Target, path: Path, slow: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """One run of the gate. `slow`: for each implementation, its slow-down in the first and in the second point."""
    arguments = [part for name, shares in slow.items() for part in (name, ",".join(map(str, shares)))]
    program = [str(SLOWED_WORKER), *arguments] if any(map(any, slow.values())) else []
    out = Path(tempfile.mkdtemp(prefix="gate-proof-"))
    started = time.monotonic()
    try:
        with RunProgress(quiet=True) as progress:
            options = Options(looks=1 + AGAIN)  # like the command
            job, repeats = Job(experiment, target, out, progress), Repeats(PROCESSES, AGAIN)
            gated = gate(job, Recording(path, open_runs(path)), options, repeats, program=program)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    if gated.interrupted:  # an incomplete run must not be counted
        raise KeyboardInterrupt
    comparison = gated.comparison
    assert comparison is not None
    assert comparison.settings.in_turns
    shared_tokens = [point.n_s for point in experiment.points(target.device, target.dtype)]
    cases = [
        {"implementation": c.implementation, "n_s": c.axes["n_s"], "verdict": c.verdict, "ratio": c.ratio}
        | {"slow": slow[c.implementation][shared_tokens.index(c.axes["n_s"])]}
        | {"low": c.low, "high": c.high, "pairs": c.head_units, "remeasured": c.remeasured, "reason": c.reason}
        for c in comparison.cases
    ]
    seconds = round(time.monotonic() - started, 1)
    return {"seconds": seconds, "exit_code": comparison.exit_code, "cases": cases} | where()


def where() -> dict[str, str]:
    """The CPU and the revision of a run."""
    state = git_state(ROOT)
    return {"cpu": read_cpu().model, "commit": state["commit"][:12] if state else ""}


def lines(path: Path) -> list[dict[str, Any]]:
    """The runs of a proof, one a line."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def load(wanted: bool) -> Iterator[None]:
    """A background load that comes and goes, if it is wanted."""
    process = subprocess.Popen([sys.executable, "-c", LOAD, str(random.randrange(1000))]) if wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()


def shares(text: str) -> list[float]:
    """`10%,20%` as 0.1 and 0.2."""
    return [float(part.rstrip("%")) / 100 for part in text.split(",")]


def is_wrong(case: dict[str, Any]) -> bool:
    return bool(case["verdict"] == "faster" or (case["verdict"] == "slower" and not case["slow"]))


def rate(count: int, total: int) -> str:
    """A count with the exact 95% interval of Clopper and Pearson for its rate."""
    low, high = binomtest(count, total).proportion_ci(0.95)
    return f"{count} of {total} ({low:.1%} to {high:.1%})"


def slowed(line: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """The slow-downs of each slowed implementation in a run, sorted, so that the order of the points has no effect."""
    slow = {
        name: tuple(sorted(case["slow"] for case in line["cases"] if case["implementation"] == name))
        for name in (SLOWED, OTHER)
    }
    return {name: shares for name, shares in slow.items() if any(shares)}


def in_words(slow: dict[str, tuple[float, ...]]) -> str:
    return "; ".join(f"{name} by {' and '.join(f'{x:.0%}' for x in xs)}" for name, xs in slow.items()) or "unchanged"


def summary() -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines(RUNS):
        load = "with a load" if line["load"] else "without a load"
        groups.setdefault(f"{in_words(slowed(line))}, {load}", []).append(line)
    for name, group in groups.items():
        times = [line["seconds"] for line in group]
        print(f"{name}: {len(group)} runs, {median(times):.0f} s in the median, {max(times):.0f} s at most")
        print(f"  runs with a wrong verdict: {rate(sum(any(map(is_wrong, g['cases'])) for g in group), len(group))}")
        cases = [(case, line["seconds"]) for line in group for case in line["cases"]]
        for slow in sorted({case["slow"] for case, _ in cases}):
            slowed_cases = [(case, seconds) for case, seconds in cases if case["slow"] == slow]
            detected = [seconds for case, seconds in slowed_cases if case["verdict"] == "slower"]
            ratios = sorted(case["ratio"] for case, _ in slowed_cases if case["ratio"])
            verdicts = dict(Counter(case["verdict"] for case, _ in slowed_cases))
            print(
                f"  slowed by {slow:.0%}: called slower {rate(len(detected), len(slowed_cases))}; {verdicts};", end=" "
            )
            print(f"ratio {median(ratios):.3f}", f"in {median(detected):.0f} s" if detected else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="total number of runs, with those already made")
    parser.add_argument("--slow", default="0%,0%", help="slow-down in the first and the second point, e.g. 10%%,20%%")
    parser.add_argument("--other", default="0%,0%", help="slow-down of the other implementation, likewise")
    parser.add_argument("--load", action="store_true", help="with a background load that comes and goes")
    parser.add_argument("--summary", action="store_true", help="print the results so far")
    arguments = parser.parse_args()
    if arguments.summary:
        summary()
        return
    slow, other = shares(arguments.slow), shares(arguments.other)
    experiment = load_experiment("gate")
    target = resolve(experiment)
    FOLDER.mkdir(parents=True, exist_ok=True)
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    path = recording(experiment, target)
    setting = {name: tuple(sorted(shares)) for name, shares in ((SLOWED, slow), (OTHER, other)) if any(shares)}
    done = sum(slowed(line) == setting and line["load"] == arguments.load for line in lines(RUNS))
    with load(arguments.load):
        for number in range(done + 1, arguments.runs + 1):
            order = 1 if number % 2 else -1  # the two points swap their slow-downs
            slow_downs = {SLOWED: slow[::order], OTHER: other[::order]}
            result = {"load": arguments.load} | one_run(experiment, target, path, slow_downs)
            with RUNS.open("a") as file:
                file.write(json.dumps(result) + "\n")
            verdicts = ", ".join(
                f"{c['implementation']}/{c['n_s']} {c['slow']:.0%} {c['verdict']} {c['ratio'] or 0:.3f}"
                for c in result["cases"]
            )
            print(f"{number}/{arguments.runs} {result['seconds']} s: {verdicts}", flush=True)


if __name__ == "__main__":
    main()
