"""Check and time everything that needs a GPU, within a time limit. The most important steps come first.

    python3 scripts/gpu_check.py --out results/gpu-check
    python3 scripts/gpu_check.py --out results/gpu-more --step mla-gpu --step trees-gpu

Runs from a plain checkout, without installation and network. It needs an NVIDIA GPU, PyTorch for CUDA with its Triton,
and the packages of pyproject.toml. In the first minute it checks every implementation against float64 at a small shape,
and prints which ones work. Then it runs the kernels' tests, and the experiments table3-gpu and gpu-kernels. --step runs
other steps in place of these, in the given order. When the time is up, it keeps the measurements that it has. All
results are in one folder. A file beside the folder contains them too, to send by mail.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = ["triton", "pytest", "pytest-timeout", "hypothesis"]
"""Packages that this script needs and ChunkBench does not."""
OPTIONAL = ["nvidia-ml-py", "flashinfer-python", "xformers", "flash-attn", "fa3-fwd"]
TESTS = ["tests/bench/measure/test_gpu_loop.py", "tests/kernels/triton/test_decode.py"]
"""Test files that this script runs. Some of their tests need a GPU. Others do not need one, but behave differently on
a GPU."""
GPU_FACTS = (
    "index,name,driver_version,vbios_version,memory.total,memory.used,ecc.mode.current,power.limit,power.default_limit,"
    "clocks.max.sm,clocks.max.mem,mig.mode.current,persistence_mode,pstate"
)
"""Fields of `nvidia-smi` that say how fast a GPU is. None of them identifies the GPU."""
ENDED = (124, 137)
"""Exit codes of a command that its time limit ended."""
PREPARED = Path(sys.prefix, ".gpu-prepared")
SAVED_S = 20.0
"""Seconds that are reserved to write the reports."""


def missing(packages: list[str]) -> list[str]:
    """The names in `packages` that are not installed."""
    installed = {distribution.name.lower().replace("_", "-") for distribution in distributions()}
    return [name for name in packages if name not in installed and not importlib.util.find_spec(name.replace("-", "_"))]


def compiled_ahead() -> bool:
    """Whether `make gpu-prepare` has compiled the kernels, or FlashInfer's package of compiled kernels is installed."""
    return PREPARED.exists() or importlib.util.find_spec("flashinfer_jit_cache") is not None


def checkout() -> dict[str, str]:
    """Environment variables with which Python finds the checkout without an installation."""
    path = [part for part in (os.environ.get("PYTHONPATH") or "").split(os.pathsep) if part]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *path]), "PYTHONUNBUFFERED": "1"}


def compiled_at_first_use(environment: dict[str, str]) -> list[str]:
    """Ids of implementations that compile kernels at their first use. They are measured only if `make gpu-prepare` has
    compiled these kernels."""
    code = "from chunkbench.baselines.registry import REGISTRY; print(*REGISTRY.compiling())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


class Steps:
    """Runs commands one after the other within a time limit. Their output goes to the screen, and into one file for
    each command."""

    def __init__(self, out: Path, environment: dict[str, str], seconds: float) -> None:
        self._out, self.environment = out, environment
        self._end = time.monotonic() + seconds
        self.done: list[dict[str, object]] = []

    @property
    def left_s(self) -> float:
        """Seconds left for measuring."""
        return self._end - time.monotonic() - SAVED_S

    def run(self, name: str, command: list[str], limit_s: float) -> int:
        """Run a command and return its exit code. 124 and 137 mean that the time limit or an interrupt ended the
        command."""
        print(f"== {name}", flush=True)
        started = time.monotonic()
        # `timeout` ends the command by SIGTERM, so a run keeps its finished points; ten seconds later it kills it.
        limited = ["timeout", "--kill-after=10", f"{max(1.0, limit_s):.1f}", *command]
        process = subprocess.Popen(
            limited, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        tee = subprocess.Popen(["tee", "-i", self._out / f"{name}.txt"], stdin=process.stdout)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            code = 124 if process.wait() else 0
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that the command left behind may hold the pipe
            tee.wait(5)
        tee.kill()
        seconds = round(time.monotonic() - started, 1)
        self.done.append({"step": name, "exit_code": code, "seconds": seconds})
        print(f"== {name}: exit code {code} after {seconds} s", flush=True)
        return code


class Measurement(NamedTuple):
    """An experiment to run on the GPU."""

    experiment: str
    part: float = 0.6
    """Fraction of the remaining time that it may take, if other steps follow."""
    options: tuple[str, ...] = ()
    """Options of `chunkbench run`."""
    axes: tuple[str, ...] = ()
    """Values of axes."""
    toy: tuple[str, ...] = ("heads=2", "kv_heads=1", "head_dim=16", "n_c=1")
    """Values in their place that make it small, for `--rehearse`."""


_SHORT = ("n_p=64", "n_s=0,64", "n_c=1", "batch_size=2", "heads=2", "head_dim=64")
_LATENT = ("latent=deepseek-v2-lite", "n_p=64", "n_s=64", "batch_size=2")
MEASUREMENTS = {
    "table3-gpu": Measurement("table3-gpu", toy=_SHORT),
    "gpu-kernels": Measurement("gpu-kernels"),
    "figure3": Measurement("figure3", toy=_SHORT),
    "figure4": Measurement("figure4", toy=_SHORT),
    "table3-modes": Measurement(
        "table3-gpu", options=("--modes", "events,eager", "--caches", "cold,warm"), axes=("n_c=8",), toy=_SHORT
    ),
    "kv8-gpu": Measurement("kv8-gpu", 0.35, toy=(*_SHORT, "kv_heads=1")),
    "query-rows-gpu": Measurement("query-rows-gpu", 0.4, toy=("n_p=64", "heads=2", "kv_heads=1", "batch_size=1")),
    "mla-gpu": Measurement("mla-gpu", toy=_LATENT),
    "razor": Measurement("razor", axes=("n_c=8",), toy=("heads=4", "kv_heads=2", "n_c=1", "n_p=512", "n_s=0")),
    "windows": Measurement("windows", toy=("heads=4", "kv_heads=2", "n_c=1", "n_p=512", "n_s=0", "window=64")),
    "trees-gpu": Measurement("trees-gpu", toy=("tree=1x64 2x16", "heads=2", "kv_heads=1", "head_dim=64")),
}
USUAL = ("first", "doctor", "tests", "table3-gpu", "gpu-kernels")
"""Steps without `--step`."""
SMALL = ("n_p=256", "n_s=256", "n_c=1", "batch_size=8")
"""Axes of the point at which every implementation is checked in the first minute."""
TOY_SMALL = ("n_p=64", "n_s=64", "n_c=1", "batch_size=2", "heads=2", "head_dim=64")


def set_axes(values: Sequence[str]) -> list[str]:
    """Options of `chunkbench run` for these values of axes."""
    return [part for value in values for part in ("--set", value)]


def what_works(cases: Path) -> list[str]:
    """Lines on the implementations of a run. The first line names those that work. Each other line gives the reason why
    one does not."""
    rows = [json.loads(line) for line in cases.read_text().splitlines()] if cases.exists() else []
    worked = dict.fromkeys(row["implementation"] for row in rows if row["status"] in ("ok", "noisy"))
    failed = {row["implementation"]: f"{row['status']}: {row['reason']}" for row in rows if not row["samples_us"]}
    return [
        f"gpu-check: works here, right against float64: {', '.join(worked) or 'nothing'}",
        *(f"  {name}: {why}" for name, why in failed.items()),
    ]


def check_needs(rehearse: bool) -> None:
    """Raise SystemExit if something is missing without which nothing can be checked."""
    needed = [re.split("[><=]", requirement)[0] for requirement in PROJECT["dependencies"]] + TOOLS
    lacking = missing([name for name in needed if name not in OPTIONAL])
    if lacking:
        raise SystemExit(f"gpu-check: missing packages: {', '.join(lacking)}; `make gpu-prepare` installs them")
    sys.path.insert(0, str(ROOT))
    from chunkbench.bench.environment import why_no_gpu

    obstacle = "" if rehearse else why_no_gpu()
    if obstacle:
        raise SystemExit(f"gpu-check: unavailable: {obstacle}")
    absent = missing(OPTIONAL)
    if absent:
        print(f"gpu-check: not installed: {', '.join(absent)}; their rows will be unavailable", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu-check"), help="new folder for all results")
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit for everything")
    parser.add_argument("--rehearse", action="store_true", help="all steps at toy sizes, on a machine without a GPU")
    parser.add_argument(
        "--step",
        action="append",
        choices=[*USUAL[:3], *MEASUREMENTS],
        help="a step to run; repeatable; default: the usual",
    )
    arguments = parser.parse_args()
    check_needs(arguments.rehearse)
    out = arguments.out.absolute()
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"gpu-check: {arguments.out} holds an earlier check; name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    import yaml  # after check_needs, which reports a missing yaml

    steps = Steps(out, checkout(), 60 * arguments.minutes)
    python, device = sys.executable, "cpu" if arguments.rehearse else "cuda"
    bench = [python, "-m", "chunkbench"]
    skipped = [] if compiled_ahead() else compiled_at_first_use(steps.environment)
    if skipped:
        print(f"gpu-check: skips {', '.join(skipped)}, which compile for minutes: see `make gpu-prepare`", flush=True)

    def measure(name: str, experiment: str, options: Sequence[str], budget_s: float, limit_s: float, *less: str) -> int:
        listed = yaml.safe_load((ROOT / "experiments" / f"{experiment}.yaml").read_text())["implementations"]
        only = [part for id_ in listed if id_ not in (*skipped, *less) for part in ("--only", id_)]
        command = [*bench, "run", experiment, "--device", device, "--budget", f"{budget_s:.0f}s", *options, *only]
        return steps.run(name, [*command, "--out", str(out / name)], limit_s)

    versions = sorted(f"{distribution.name} {distribution.version}" for distribution in distributions())
    (out / "versions.txt").write_text("\n".join([f"Python {sys.version}", *versions, ""]))
    if shutil.which("nvidia-smi"):
        steps.run("nvidia-smi", ["nvidia-smi", f"--query-gpu={GPU_FACTS}", "--format=csv"], 20)
    wanted = arguments.step or USUAL
    for place, name in enumerate(wanted):
        if name == "first":
            # flex_attention compiles for 15 s.
            small = set_axes(TOY_SMALL if arguments.rehearse else SMALL)
            if measure("first", "table3-gpu", small, 1, 60, "flex_attention") in ENDED:
                print("gpu-check: a minute was too short for this step, most of which compiles: see first.txt")
            print("\n".join(what_works(out / "first" / "cases.jsonl")), flush=True)
        elif name == "doctor":
            steps.run("doctor", [*bench, "doctor"], 30)
        elif name == "tests":
            tests = [
                python,
                "-m",
                "pytest",
                "-q",
                "-ra",
                "-m",
                "",
                "-p",
                "no:cacheprovider",
                "--timeout",
                "120",
                *TESTS,
            ]
            seconds = 0.4 * steps.left_s
            tests += ["--session-timeout", f"{seconds - 10:.0f}"]  # so that messages of failed tests come last
            steps.run("tests", [*tests, *(["-k", "a_forest"] if arguments.rehearse else [])], seconds)
        else:
            experiment, part, options, axes, toy = MEASUREMENTS[name]
            seconds = steps.left_s * (part if place + 1 < len(wanted) else 0.9)
            budget = 1 if arguments.rehearse else 0.4 * seconds
            options = () if arguments.rehearse else options  # which need a GPU
            measure(name, experiment, [*options, *set_axes(toy if arguments.rehearse else axes)], budget, seconds)
    (out / "steps.json").write_text(json.dumps(steps.done, indent=1) + "\n")
    for name in [name for name in wanted if name in MEASUREMENTS]:
        report = out / name / "report.md"
        print(report.read_text() if report.exists() else f"gpu-check: no report of {name}; see {name}.txt")
    sent = arguments.out.parent / f"{out.name}.tar.gz"
    with tarfile.open(sent, "w:gz") as archive:
        archive.add(out, out.name)
    print(f"gpu-check: all is in {arguments.out}; to send it: {sent}", flush=True)
    sys.exit(any(step["exit_code"] for step in steps.done))


if __name__ == "__main__":
    main()
