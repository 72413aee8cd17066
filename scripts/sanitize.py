"""Run the native module's tests under AddressSanitizer and UndefinedBehaviorSanitizer; `make sanitize` calls it.

A second build of the module, in build/sanitize, takes the place of the installed one for the length of the tests. Needs
GCC with its sanitizer libraries.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "sanitize"
MODULE = "chunkbench.kernels.cpu._native"
FLAGS = (
    "-O1 -g1 "
    "-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer "
    "-D_GLIBCXX_ASSERTIONS -Wno-maybe-uninitialized -Wno-uninitialized"
)
# In torch's process, leaks are torch's and the interpreter's.
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
TESTS = [*sorted(str(path) for path in (ROOT / "tests" / "kernels").glob("test_native*.py")), "tests/test_attention.py"]


def library(name: str) -> str:
    """Path of a library of the compiler's. Raises SystemExit where it has none."""
    compiler = os.environ.get("CXX", "g++")
    try:
        path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"sanitize: {compiler} does not run: {error}") from None
    if not Path(path.strip()).is_absolute():
        raise SystemExit(f"sanitize: {compiler} has no {name}; GCC with its sanitizer libraries is needed")
    return path.strip()


def build() -> Path:
    """Build the module with sanitizers and return its path. Raises CalledProcessError."""
    nanobind = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    folder = subprocess.run(nanobind, capture_output=True, text=True, check=True).stdout.strip()
    settings = {
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_CXX_COMPILER": os.environ.get("CXX", "g++"),
        "CMAKE_CXX_FLAGS": FLAGS,
        "Python_EXECUTABLE": sys.executable,
        "nanobind_DIR": folder,
    }
    scripts = Path(sys.executable).parent  # set-up puts cmake and ninja there where the machine has none
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), *(f"-D{name}={value}" for name, value in settings.items())]
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(BUILD), "--parallel"], check=True, env=environment)
    (module,) = BUILD.glob("_native*.so")
    return module


def test(module: Path, arguments: list[str]) -> int:
    """Run the tests in this process, with `module` under the name of the installed one."""
    import pytest

    spec = importlib.util.spec_from_file_location(MODULE, module)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[MODULE] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    from chunkbench.kernels import cpu

    assert cpu.native() is loaded
    # Several times as slow as the installed module: no time limit, and no cache to leave behind.
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--timeout=0", *(arguments or TESTS)]))


def main() -> None:
    if "CHUNKBENCH_SANITIZED" in os.environ:
        raise SystemExit(test(Path(os.environ["CHUNKBENCH_SANITIZED"]), sys.argv[1:]))
    # The C++ runtime beside the sanitizer's, which otherwise does not find the function that throws exceptions.
    preload = " ".join(library(name) for name in ("libasan.so", "libstdc++.so.6"))
    environment = {**os.environ, **OPTIONS, "LD_PRELOAD": preload, "CHUNKBENCH_SANITIZED": str(build())}
    command = [sys.executable, __file__, *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode)


if __name__ == "__main__":
    main()
