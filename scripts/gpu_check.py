"""Check and time everything that needs a GPU, in one go and within a time limit, and leave one folder to copy back.

    python3 scripts/gpu_check.py --out results/gpu-check

Runs from a plain checkout, without an installation and without a network: it needs an NVIDIA GPU, PyTorch for CUDA with
its Triton, and the packages of pyproject.toml. First correctness (the kernels' tests, then every implementation against
float64), then the experiment gpu-kernels: Table 3 and the bars. What was measured when the time is up is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = [
    "torch",
    "triton",
    "click",
    "jinja2",
    "junitparser",
    "matplotlib",
    "numpy",
    "pandas",
    "psutil",
    "pydantic",
    "yaml",
    "rich",
    "typing_extensions",
    "pytest",
    "pytest_timeout",
    "hypothesis",
]
OPTIONAL = {"pynvml": "nvidia-ml-py", "flashinfer": "flashinfer-python", "xformers": "xformers"}
OPTIONAL |= {"flash_attn": "flash-attn", "fa3_fwd_interface": "fa3-fwd"}
TESTS = [
    "tests/measure/test_on_cuda.py",
    "tests/kernels/triton/test_attention.py",
    "tests/kernels/triton/test_decode.py",
]
"""Those that a GPU makes a difference to."""
PREPARED = Path(sys.prefix, ".gpu-prepared")
SAVED_S = 20.0
"""Of the time, kept for the reports."""


def missing() -> list[str]:
    """Modules without which nothing runs."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def compiled_ahead() -> bool:
    """Whether nothing need compile: `make gpu-prepare` has ended here, or FlashInfer's package of binaries is there."""
    return PREPARED.exists() or importlib.util.find_spec("flashinfer_jit_cache") is not None


def register(folder: Path) -> dict[str, str]:
    """Variables with which the checkout is importable and its implementations are registered, without installing."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        entries = tomllib.load(file)["project"]["entry-points"]
    described = folder / "chunkbench-0.dist-info"
    described.mkdir(parents=True, exist_ok=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: chunkbench\nVersion: 0\n")
    groups = [f"[{group}]\n" + "".join(f"{a} = {b}\n" for a, b in names.items()) for group, names in entries.items()]
    (described / "entry_points.txt").write_text("\n".join(groups))
    kept = [part for part in (os.environ.get("PYTHONPATH") or "").split(os.pathsep) if part]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *kept]), "PYTHONUNBUFFERED": "1"}


def compiled_at_first_use(environment: dict[str, str]) -> list[str]:
    """Implementations that say so of themselves: measured only where `make gpu-prepare` has had them compiled."""
    code = "from chunkbench.baselines.registry import REGISTRY; print(*REGISTRY.compiling())"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return said.stdout.split()


class Steps:
    """Runs commands one after the other, each with what is left of the time; output goes to the screen and a file."""

    def __init__(self, out: Path, environment: dict[str, str], seconds: float) -> None:
        self._out, self.environment = out, environment
        self._end = time.monotonic() + seconds
        self.done: list[dict[str, object]] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left for measuring."""
        return self._end - time.monotonic() - SAVED_S

    def run(self, name: str, command: list[str], limit_s: float) -> int:
        """The command's exit code; 124 where its time was up. An interrupt lets it keep what it has."""
        print(f"== {name}", flush=True)
        started = time.monotonic()
        with (self._out / f"{name}.txt").open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # so that what it has started ends with it
            )
            code = self._follow(process, file.fileno(), max(1.0, limit_s))
        seconds = round(time.monotonic() - started, 1)
        self.done.append({"step": name, "exit_code": code, "seconds": seconds})
        print(f"== {name}: exit code {code} after {seconds} s", flush=True)
        return code

    @staticmethod
    def _follow(process: subprocess.Popen[str], file: int, limit_s: float) -> int:
        tee = subprocess.Popen(["tee", f"/proc/self/fd/{file}"], stdin=process.stdout, pass_fds=[file])
        try:
            code = process.wait(limit_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.terminate()  # a run keeps its finished points
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            code = 124
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tee.wait(5)
        tee.kill()
        return code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu-check"), help="folder for everything (made anew)")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all of it")
    parser.add_argument("--experiment", default="gpu-kernels", help="what is measured")
    arguments = parser.parse_args()
    lacking = missing()
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
    absent = [package for module, package in OPTIONAL.items() if importlib.util.find_spec(module) is None]
    if absent:
        print(f"gpu-check: without {', '.join(absent)}: their rows will say unavailable", flush=True)
    steps = Steps(out, register(out / "site"), 60 * arguments.minutes)
    python = sys.executable
    bench = [python, "-m", "chunkbench"]
    run = out / arguments.experiment
    steps.run("doctor", [*bench, "doctor"], 30)
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120", *TESTS]
    tested = steps.run("tests", tests, 0.4 * steps.left_s)
    budget = max(30.0, steps.left_s - 60)
    measure = [*bench, "run", arguments.experiment, "--device", "cuda", "--budget", f"{budget:.0f}s", "--out", str(run)]
    if not compiled_ahead():
        compiling = compiled_at_first_use(steps.environment)
        print(
            f"gpu-check: without {', '.join(compiling)}, which compile for minutes: see `make gpu-prepare`", flush=True
        )
        with (ROOT / "experiments" / f"{arguments.experiment}.yaml").open() as file:
            listed = yaml.safe_load(file)["implementations"]
        measure += [part for name in listed if name not in compiling for part in ("--only", name)]
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
