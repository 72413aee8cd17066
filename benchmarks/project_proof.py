"""How reliable is the gate for other people's projects? Runs `chunkbench gate` again and again, as a user would.

    python benchmarks/project_proof.py --minutes 60    make runs for an hour, those that are the furthest behind first
    python benchmarks/project_proof.py --summary       the tables of docs/regression.md

Unchanged code of three kinds (a native kernel, `examples/my-kernel` in PyTorch, `python_kernel` in plain Python), half
of it under a load that comes and goes; and `examples/my-kernel` made slower on purpose, installed ordinarily and in
place. Each run is one line of results/recorded/gate-proofs/projects.jsonl, so a proof can be interrupted, and continued
on another machine. Recordings belong to a machine and to a revision: they are made anew in every session. The projects
are installed into the environment that runs this script, and uninstalled at the end.

A line counts as loaded if other programs took a fifth of a CPU or more while it was measured (`foreign_cpus`), whoever
they were: the load of this script, or somebody who compiled beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gate_proof import ROOT, lines, load, rate, where
from slowed_example import slower_by

from chunkbench.store import open_run

LINES = ROOT / "results" / "recorded" / "gate-proofs" / "projects.jsonl"
CLI = [sys.executable, "-m", "chunkbench"]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
PROJECTS = {"my-kernel": ROOT / "examples" / "my-kernel", "python-kernel": ROOT / "benchmarks" / "python_kernel"}
NATIVE = """\
title: "Gate: a native kernel"
implementations: [chunk_attn]
baseline: chunk_attn
budget: 20s
case_limit: 10s
defaults: {n_c: 1, batch_size: 8, heads: 8, head_dim: 128, dtype: float32, threads: 1}
sweep:
  - {n_p: 512, n_s: 0}
"""


@dataclass(frozen=True)
class Setting:
    """What one line of the proof is about."""

    project: str
    install: str = ""
    """`installed` or `in place`; empty for the bundled native kernel."""
    slow: float = 0.0
    """Extra time of each call, as a share of the call."""
    as_recorded: bool = False
    load: bool = False


WANTED: dict[Setting, int] = {
    Setting(project, "" if project == "native" else "in place", load=load): 30
    for project in ("native", "my-kernel", "python-kernel")
    for load in (False, True)
} | {
    Setting("my-kernel", install, slow, as_recorded): 20
    for install in ("installed", "in place")
    for slow, as_recorded in ((0.05, False), (0.2, False), (19.0, False), (19.0, True))
}


LOADED = 0.2
"""CPUs that other programs took, from which on a run counts as loaded."""


def setting_of(line: dict[str, Any]) -> Setting:
    """The setting for which a line counts. Only unchanged code is wanted with and without load."""
    setting = Setting(**{name: line[name] for name in Setting.__dataclass_fields__})
    return replace(setting, load=not setting.slow and line["foreign_cpus"] >= LOADED)


class Bench:
    """The projects' copies, installations and recordings of this session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._installed: tuple[str, str] | None = None

    def place(self, setting: Setting) -> Path:
        """The folder of a project: a copy, as slow as wanted and installed, with a recording of unchanged code."""
        place = self._folder / f"{setting.project}-{setting.install or 'bundled'}".replace(" ", "-")
        if not place.exists():
            if setting.project == "native":
                place.mkdir()
                (place / "gate.yaml").write_text(NATIVE)
            else:
                shutil.copytree(PROJECTS[setting.project], place)
            self._install(place, setting)
            print(f"recording {place.name}", flush=True)
            subprocess.run([*CLI, "gate", "gate.yaml", "--record", "recording", "-q"], cwd=place, check=True)
        module = place / "src" / "my_kernel.py"
        if module.exists():
            original = (PROJECTS["my-kernel"] / "src" / "my_kernel.py").read_text()
            module.write_text(original + (slower_by(setting.slow) if setting.slow else ""))
        self._install(place, setting)
        return place

    def _install(self, place: Path, setting: Setting) -> None:
        wanted = (setting.project, setting.install)
        if setting.project == "native" or (self._installed == wanted and setting.install == "in place"):
            return
        in_place = ["-e"] if setting.install == "in place" else []
        options = ["--no-deps", "--no-build-isolation", "--force-reinstall"]
        subprocess.run([*PIP, "install", *options, *in_place, str(place)], check=True)
        self._installed = wanted

    def close(self) -> None:
        subprocess.run([*PIP, "uninstall", "-y", *PROJECTS], check=False, stderr=subprocess.DEVNULL)


def one_run(bench: Bench, setting: Setting) -> dict[str, Any]:
    place = bench.place(setting)
    out = Path(tempfile.mkdtemp(prefix="proof-"))
    options = ["--as-recorded"] if setting.as_recorded else []
    command = [*CLI, "gate", "gate.yaml", "--against", "recording", "--format", "json", "--out", str(out), *options]
    try:
        with load(setting.load):
            started = time.monotonic()
            done = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
            seconds = time.monotonic() - started
        comparison = json.loads(done.stdout)
        runs = [open_run(path.parent) for path in out.rglob("manifest.json")]
        noises = [case.noise for run in runs for case in run.cases if case.noise is not None]
        foreign = fmean(noise.foreign_cpus for noise in noises) if noises else 0.0
    finally:
        shutil.rmtree(out, ignore_errors=True)
    (case,) = [case for case in comparison["cases"] if case["metric"] == "latency"]
    kept = {name: case[name] for name in ("verdict", "ratio", "low", "high", "head_units", "remeasured", "reason")}
    counts = {"seconds": round(seconds, 1), "exit_code": done.returncode, "foreign_cpus": round(foreign, 2)}
    return asdict(setting) | kept | counts | where()


def run(minutes: float, projects: list[str]) -> None:
    wanted = {setting: number for setting, number in WANTED.items() if not projects or setting.project in projects}
    done = Counter(map(setting_of, lines(LINES)))
    end = time.monotonic() + 60 * minutes
    LINES.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="project-proof-") as folder:
        bench = Bench(Path(folder))
        try:
            while time.monotonic() < end:
                setting = min(wanted, key=lambda s: done[s] / wanted[s])
                if done[setting] >= wanted[setting]:
                    break
                result = one_run(bench, setting)
                with LINES.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                done[setting_of(result)] += 1  # somebody else may have loaded the machine
                interval = f"{result['low'] or 0:.3f}..{result['high'] or 0:.3f}"
                print(
                    f"{setting} {result['verdict']} {result['ratio']:.3f} ({interval}) {result['seconds']} s",
                    flush=True,
                )
        finally:
            bench.close()


def summary() -> None:
    groups: dict[Setting, list[dict[str, Any]]] = {}
    for line in lines(LINES):
        groups.setdefault(setting_of(line), []).append(line)
    for setting in WANTED:
        group = groups.get(setting, [])
        if not group:
            continue
        quiet = [line["seconds"] for line in group if line["foreign_cpus"] < LOADED]
        busy = [line["seconds"] for line in group if line["foreign_cpus"] >= LOADED]
        verdicts = dict(Counter(line["verdict"] for line in group))
        called = sum(line["verdict"] in (("slower",) if setting.slow else ("slower", "faster")) for line in group)
        ratios = [line["ratio"] for line in group if line["ratio"]]
        name = "slower" if setting.slow else "changed"
        print(f"{setting}: {verdicts}; called {name} {rate(called, len(group))}; ratio {median(ratios):.3f};", end=" ")
        times = [
            f"{kind} {median(seconds):.0f} s in the median, {max(seconds):.0f} s at most"
            for kind, seconds in (("quiet", quiet), ("loaded", busy))
            if seconds
        ]
        print("; ".join(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="start no run after this time")
    parser.add_argument(
        "--project", action="append", default=[], help="only runs of this project: native, my-kernel, ..."
    )
    parser.add_argument("--summary", action="store_true", help="print the results so far")
    arguments = parser.parse_args()
    if arguments.summary:
        summary()
    else:
        run(arguments.minutes, arguments.project)


if __name__ == "__main__":
    main()
