"""Check and time everything that needs a GPU, in one run with a time limit. All results are in one folder.

    python3 scripts/gpu_check.py --out results/gpu-check

Runs from a plain checkout, without installation and network. It needs an NVIDIA GPU, PyTorch for CUDA with its Triton,
and the packages of pyproject.toml. First it checks correctness (the kernels' tests, then every implementation against
float64). Then it runs the experiment gpu-kernels: Table 3 and the bars. When the time is up, it keeps the measurements
that it has.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = ["triton", "pytest", "pytest-timeout", "hypothesis"]
"""Needed besides the packages that ChunkBench requires."""
OPTIONAL = ["nvidia-ml-py", "flashinfer-python", "xformers", "flash-attn", "fa3-fwd"]
TESTS = [
    "tests/measure/test_on_cuda.py",
    "tests/kernels/triton/test_attention.py",
    "tests/kernels/triton/test_decode.py",
]
"""The tests that need a GPU or run differently on one."""
PREPARED = Path(sys.prefix, ".gpu-prepared")
SAVED_S = 20.0
"""Part of the time that is reserved for the reports."""


def missing(packages: list[str]) -> list[str]:
    """Those of the packages that are not installed. PyTorch for CUDA has Triton under another package's name."""
    installed = {distribution.name.lower().replace("_", "-") for distribution in distributions()}
    return [name for name in packages if name not in installed and not importlib.util.find_spec(name.replace("-", "_"))]


def compiled_ahead() -> bool:
    """Whether all kernels are compiled: `make gpu-prepare` has run here, or FlashInfer's binaries are installed."""
    return PREPARED.exists() or importlib.util.find_spec("flashinfer_jit_cache") is not None


def register(folder: Path) -> dict[str, str]:
    """Environment variables that make the checkout importable and register its implementations without installation."""
    entries = PROJECT["entry-points"]
    metadata = folder / "chunkbench-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: chunkbench\nVersion: 0\n")
    groups = [f"[{group}]\n" + "".join(f"{a} = {b}\n" for a, b in names.items()) for group, names in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    path = [part for part in (os.environ.get("PYTHONPATH") or "").split(os.pathsep) if part]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *path]), "PYTHONUNBUFFERED": "1"}


def compiled_at_first_use(environment: dict[str, str]) -> list[str]:
    """Implementations whose first use compiles kernels: measured only after `make gpu-prepare` has compiled them."""
    code = "from chunkbench.baselines.registry import REGISTRY; print(*REGISTRY.compiling())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


class Steps:
    """Runs commands one after the other within a time limit; output goes to the screen and to one file per command."""

    def __init__(self, out: Path, environment: dict[str, str], seconds: float) -> None:
        self._out, self.environment = out, environment
        self._end = time.monotonic() + seconds
        self.done: list[dict[str, object]] = []

    @property
    def left_s(self) -> float:
        """Seconds left for measuring."""
        return self._end - time.monotonic() - SAVED_S

    def run(self, name: str, command: list[str], limit_s: float) -> int:
        """Run a command and return its exit code; 124 or 137 if its time limit or an interrupt ended it."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu-check"), help="new folder for all results")
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit for everything")
    parser.add_argument("--experiment", default="gpu-kernels", help="the experiment to measure")
    arguments = parser.parse_args()
    needed = [re.split("[><=]", requirement)[0] for requirement in PROJECT["dependencies"]] + TOOLS
    lacking = missing([name for name in needed if name not in OPTIONAL])
    if lacking:
        raise SystemExit(f"gpu-check: missing packages: {', '.join(lacking)}; `make gpu-prepare` installs them")
    import torch
    import yaml

    if not torch.cuda.is_available():
        raise SystemExit("gpu-check: unavailable: PyTorch sees no NVIDIA GPU here")
    out = arguments.out.absolute()
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"gpu-check: {arguments.out} holds an earlier check; name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    absent = missing(OPTIONAL)
    if absent:
        print(f"gpu-check: not installed: {', '.join(absent)}; their rows will be unavailable", flush=True)
    steps = Steps(out, register(out / "site"), 60 * arguments.minutes)
    python = sys.executable
    bench = [python, "-m", "chunkbench"]
    run = out / arguments.experiment
    steps.run("doctor", [*bench, "doctor"], 30)
    tests = [python, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", "--timeout", "120", *TESTS]
    tested = steps.run("tests", tests, 0.4 * steps.left_s)
    budget = max(30.0, steps.left_s - 60)
    measure = [*bench, "run", arguments.experiment, "--device", "cuda", "--budget", f"{budget:.0f}s", "--out", str(run)]
    if not compiled_ahead():
        compiling = compiled_at_first_use(steps.environment)
        print(f"gpu-check: skips {', '.join(compiling)}, which compile for minutes: see `make gpu-prepare`", flush=True)
        with (ROOT / "experiments" / f"{arguments.experiment}.yaml").open() as file:
            implementations = yaml.safe_load(file)["implementations"]
        measure += [part for name in implementations if name not in compiling for part in ("--only", name)]
    measured = steps.run("measure", measure, steps.left_s)
    for form, ending in (("markdown", "md"), ("json", "json"), ("html", "html")):
        target = str(out / f"report.{ending}")
        steps.run(f"report-{form}", [*bench, "report", str(run), "--format", form, "--out", target], 30)
    (out / "steps.json").write_text(json.dumps(steps.done, indent=1) + "\n")
    print((out / "report.md").read_text() if (out / "report.md").exists() else "gpu-check: no report; see measure.txt")
    print(f"gpu-check: everything is in {arguments.out}", flush=True)
    sys.exit(tested or measured or any(step["exit_code"] for step in steps.done))


if __name__ == "__main__":
    main()
