"""Run the native module's tests on a second build of the module, which replaces the installed one during the tests.

`sanitize` is built with AddressSanitizer and UndefinedBehaviorSanitizer; it needs GCC with its sanitizer libraries.
`emulate` computes the AVX-512 loops with SIMDe's portable intrinsics, so that they run on any CPU; it needs SIMDe's
headers (on Debian and Ubuntu the package libsimde-dev). `make sanitize` and `make emulate` call this script.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULE = "chunkbench.kernels.cpu._native"
ATTENTION = ("tests/kernels/test_native_attention.py", "tests/kernels/test_native_misuse.py", "tests/attention")
PROBES = ("tests/kernels/test_native_probes.py",)


@dataclass(frozen=True)
class Build:
    flags: str
    tests: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


BUILDS = {
    "sanitize": Build(
        # Checks of every pointer, which AddressSanitizer makes again at its use, and the usual choice of registers
        # would make compiling the AVX-512 loops two and a half times as long.
        flags="-O1 -g1 -fsanitize=address,undefined -fno-sanitize=vptr,null,alignment,pointer-overflow "
        "-fno-sanitize-recover=undefined -fira-algorithm=priority -fira-region=one "
        "-fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS -Wno-maybe-uninitialized -Wno-uninitialized",
        tests=ATTENTION + PROBES,
        # Also the C++ runtime: without it the sanitizer does not find the function that throws exceptions.
        preload=("libasan.so", "libstdc++.so.6"),
        # No leak detection: it would report leaks of torch and of the interpreter. A test ends children by SIGSEGV.
        environment={
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:handle_segv=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
    ),
    "emulate": Build(flags="-O2 -Wno-psabi", tests=ATTENTION, settings={"CHUNKBENCH_EMULATE_AVX512": "ON"}),
}


def library(name: str) -> str:
    """Path of a library of the compiler. Raises SystemExit if the compiler does not have it."""
    compiler = os.environ.get("CXX", "g++")
    try:
        path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{compiler} does not run: {error}") from None
    if not Path(path.strip()).is_absolute():
        raise SystemExit(f"{compiler} has no {name}; install GCC with its sanitizer libraries")
    return path.strip()


def build(name: str) -> Path:
    """Build the native module, and return its path. Raises CalledProcessError."""
    variant, folder = BUILDS[name], ROOT / "build" / name
    nanobind = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    settings = {
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_CXX_COMPILER": os.environ.get("CXX", "g++"),
        "CMAKE_CXX_FLAGS": variant.flags,
        "Python_EXECUTABLE": sys.executable,
        "nanobind_DIR": subprocess.run(nanobind, capture_output=True, text=True, check=True).stdout.strip(),
        **variant.settings,
    }
    scripts = Path(sys.executable).parent  # set-up installs cmake and ninja there if the machine has none
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), *(f"-D{key}={value}" for key, value in settings.items())]
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(folder), "--parallel"], check=True, env=environment)
    (module,) = folder.glob("_native*.so")
    return module


def test(module: Path, arguments: Sequence[str]) -> int:
    """Run the tests in this process with the native module at the path `module`. Returns the exit code of pytest."""
    import pytest

    spec = importlib.util.spec_from_file_location(MODULE, module)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[MODULE] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    from chunkbench.kernels import cpu

    assert cpu.native() is loaded
    # No time limit, because the build is several times slower than the installed module; and no cache files.
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--timeout=0", *arguments]))


def main() -> None:
    if "CHUNKBENCH_NATIVE_BUILD" in os.environ:
        raise SystemExit(test(Path(os.environ["CHUNKBENCH_NATIVE_BUILD"]), sys.argv[2:] or BUILDS[sys.argv[1]].tests))
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BUILDS:
        raise SystemExit(f"usage: {sys.argv[0]} {'|'.join(BUILDS)} [arguments for pytest]")
    variant = BUILDS[name]
    preload = {"LD_PRELOAD": " ".join(map(library, variant.preload))} if variant.preload else {}
    try:
        environment = {**os.environ, **variant.environment, **preload, "CHUNKBENCH_NATIVE_BUILD": str(build(name))}
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{name}: the build failed, see above ({error.cmd[0]} returned {error.returncode})") from None
    command = [sys.executable, __file__, *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode)


if __name__ == "__main__":
    main()
