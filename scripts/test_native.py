"""Run the native module's tests on a second build of it, which takes the installed one's place for that long.

`sanitize` is built with AddressSanitizer and UndefinedBehaviorSanitizer; it needs GCC with its sanitizer libraries.
`emulate` has the AVX-512 loops computed by SIMDe's portable intrinsics, so that they run on any CPU; it needs SIMDe's
headers (on Debian and Ubuntu the package libsimde-dev). `make sanitize` and `make emulate` call this.
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
ATTENTION = ("tests/kernels/test_native_attention.py", "tests/kernels/test_native_misuse.py", "tests/test_attention.py")
PROBES = ("tests/kernels/test_native_probes.py",)


@dataclass(frozen=True)
class Build:
    """How one of the builds differs from the installed one."""

    flags: str
    tests: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


BUILDS = {
    "sanitize": Build(
        flags="-O1 -g1 -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined "
        "-fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS -Wno-maybe-uninitialized -Wno-uninitialized",
        tests=ATTENTION + PROBES,
        # The C++ runtime beside the sanitizer's, which otherwise does not find the function that throws exceptions.
        preload=("libasan.so", "libstdc++.so.6"),
        # In torch's process, leaks are torch's and the interpreter's.
        environment={"ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"},
    ),
    "emulate": Build(flags="-O2 -Wno-psabi", tests=ATTENTION, settings={"CHUNKBENCH_EMULATE_AVX512": "ON"}),
}


def library(name: str) -> str:
    """Path of a library of the compiler's. Raises SystemExit where it has none."""
    compiler = os.environ.get("CXX", "g++")
    try:
        path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{compiler} does not run: {error}") from None
    if not Path(path.strip()).is_absolute():
        raise SystemExit(f"{compiler} has no {name}; GCC with its sanitizer libraries is needed")
    return path.strip()


def build(name: str) -> Path:
    """Build the module and return its path. Raises CalledProcessError."""
    chosen, folder = BUILDS[name], ROOT / "build" / name
    nanobind = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    settings = {
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_CXX_COMPILER": os.environ.get("CXX", "g++"),
        "CMAKE_CXX_FLAGS": chosen.flags,
        "Python_EXECUTABLE": sys.executable,
        "nanobind_DIR": subprocess.run(nanobind, capture_output=True, text=True, check=True).stdout.strip(),
        **chosen.settings,
    }
    scripts = Path(sys.executable).parent  # set-up puts cmake and ninja there where the machine has none
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), *(f"-D{key}={value}" for key, value in settings.items())]
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(folder), "--parallel"], check=True, env=environment)
    (module,) = folder.glob("_native*.so")
    return module


def test(module: Path, arguments: Sequence[str]) -> int:
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
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--timeout=0", *arguments]))


def main() -> None:
    if "CHUNKBENCH_NATIVE_BUILD" in os.environ:
        raise SystemExit(test(Path(os.environ["CHUNKBENCH_NATIVE_BUILD"]), sys.argv[2:] or BUILDS[sys.argv[1]].tests))
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BUILDS:
        raise SystemExit(f"usage: {sys.argv[0]} {'|'.join(BUILDS)} [arguments for pytest]")
    chosen = BUILDS[name]
    preload = {"LD_PRELOAD": " ".join(map(library, chosen.preload))} if chosen.preload else {}
    try:
        environment = {**os.environ, **chosen.environment, **preload, "CHUNKBENCH_NATIVE_BUILD": str(build(name))}
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{name}: the build failed, see above ({error.cmd[0]} returned {error.returncode})") from None
    command = [sys.executable, __file__, *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode)


if __name__ == "__main__":
    main()
