"""Build the CPU kernel that the ChunkAttention authors published, for the implementation `chunk_attn_authors`.

    git clone https://github.com/microsoft/chunk-attention
    .venv/bin/python -m pip install mkl==2025.0.1 mkl-include==2025.0.1
    .venv/bin/python scripts/build_chunk_attn_authors.py chunk-attention

Compiles the sources of the checkout as they are into the extension module `chunk_attn_c` and installs it into the
environment whose Python runs this script (a few minutes). Beside it, `chunk_attn_c.json` says what was built. Needs g++
with C++20 and OpenMP, ninja, PyTorch, and MKL with its headers. `--remove` removes the module again.

On a CPU that is not Intel's, MKL takes a slower path than the CPU could run. The script also builds `mkl_any_cpu.so`,
a library that tells MKL to treat the CPU as Intel's. For a second measurement with MKL's faster path
(in PyTorch, too), start ChunkBench with LD_PRELOAD=.../mkl_any_cpu.so; the script prints the command.

Two things differ from the authors' own build. First, an empty header replaces the logging library spdlog, because its
packaged versions do not compile with the authors' C++ standard. The kernel logs nothing while it computes. Second, MKL
is linked in its sequential form, because the kernel calls MKL from threads of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from chunkbench.bench.environment.revision import git_state

MODULE = "chunk_attn_c"
SOURCES = (
    "chunk.cpp",
    "chunk_allocator.cpp",
    "attention.cpp",
    "task_executor.cpp",
    "str_utils.cpp",
    "kernel_cpu_mkl.cpp",
    "python_exports.cpp",
)
FLAGS = ("-O3", "-march=native", "-fopenmp", "-std=c++20", "-DUSE_MKL=1", "-DNDEBUG")
MKL = ("libmkl_intel_lp64.so.2", "libmkl_sequential.so.2", "libmkl_core.so.2")
INSTALL_MKL = f"{sys.executable} -m pip install mkl==2025.0.1 mkl-include==2025.0.1"
ANY_CPU = "mkl_any_cpu.so"
# PyTorch's MKL asks the first function; MKL 2025 calls what the second one returns.
ANY_CPU_SOURCE = """\
int mkl_serv_intel_cpu_true(void) { return 1; }
int (*mkl_serv_get_cpu_true(void))(void) { return mkl_serv_intel_cpu_true; }
"""
NO_LOGGING = """\
#pragma once
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>
namespace spdlog {
namespace level { enum level_enum { debug }; }
namespace sinks { struct sink {}; }
struct logger {
    template <class... A> void debug(const A&...) {}
    template <class... A> void info(const A&...) {}
    template <class... A> void warn(const A&...) {}
    template <class... A> void error(const A&...) {}
};
}
"""
LOGGER = """\
#include "logging.h"
Logger::Logger(bool, bool, const spdlog::level::level_enum&, const std::string&)
    : inner_logger_(std::make_shared<spdlog::logger>()) {}
void Logger::Debug(const char*) {}
void Logger::Info(const char*) {}
void Logger::Warn(const char*) {}
void Logger::Error(const char*) {}
Logger logger;
"""


def sources_of(checkout: Path) -> Path:
    """The folder with the C++ sources of the authors. Raises SystemExit if `checkout` does not have it."""
    folder = checkout / "cpp" / "chunk_attn"
    missing = [name for name in SOURCES if not (folder / name).is_file()]
    if missing:
        raise SystemExit(
            f"{checkout} is no checkout of microsoft/chunk-attention: cpp/chunk_attn/{missing[0]} is missing"
        )
    return folder


def mkl_folders() -> tuple[Path, Path]:
    """The folders with MKL's headers and libraries. Raises SystemExit if they are missing; the message tells how to
    install them."""
    include, lib = Path(sys.prefix) / "include", Path(sys.prefix) / "lib"
    missing = [path for path in (include / "mkl_cblas.h", *(lib / name for name in MKL)) if not path.exists()]
    if missing:
        raise SystemExit(f"MKL is missing in this environment ({missing[0].name}): {INSTALL_MKL}")
    return include, lib


def compile_all(sources: Path, work: Path) -> Path:
    """Compile and import the module, and return its path. Raises RuntimeError with the compiler's messages."""
    from torch.utils.cpp_extension import load

    mkl_include, mkl_lib = mkl_folders()
    for name in ("spdlog.h", "fmt/ostr.h"):
        (work / "spdlog" / name).parent.mkdir(parents=True, exist_ok=True)
        (work / "spdlog" / name).write_text(NO_LOGGING)
    (work / "logger.cpp").write_text(LOGGER)
    # Set-up installs ninja beside Python if the machine has none.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    load(
        MODULE,
        [str(path) for path in (*(sources / name for name in SOURCES), work / "logger.cpp")],
        extra_cflags=list(FLAGS),
        extra_ldflags=["-fopenmp", *(str(mkl_lib / name) for name in MKL), f"-Wl,-rpath,{mkl_lib}"],
        extra_include_paths=[str(folder) for folder in (sources, work, mkl_include)],
        build_directory=str(work),
        verbose=True,
    )
    return work / f"{MODULE}.so"


def build_any_cpu(target: Path, work: Path) -> None:
    """Build the library that makes MKL treat every CPU as Intel's. Raises OSError or CalledProcessError."""
    source = work / "any_cpu.c"
    source.write_text(ANY_CPU_SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(target), str(source)], check=True)


def mkl_version() -> str:
    try:
        return version("mkl")
    except PackageNotFoundError:
        return "of unknown version"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, help="a checkout of github.com/microsoft/chunk-attention")
    parser.add_argument("--remove", action="store_true", help="remove the module from this environment")
    arguments = parser.parse_args()
    target = Path(sysconfig.get_path("platlib")) / f"{MODULE}.so"
    any_cpu = target.with_name(ANY_CPU)
    if arguments.remove:
        for path in (target, target.with_suffix(".json"), any_cpu):
            path.unlink(missing_ok=True)
        return
    if arguments.checkout is None:
        parser.error("which checkout? For example: build_chunk_attn_authors.py chunk-attention")
    sources = sources_of(arguments.checkout)
    with tempfile.TemporaryDirectory(prefix="chunk-attn-authors-") as folder:
        try:
            built = compile_all(sources, Path(folder))
            build_any_cpu(any_cpu, Path(folder))
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"the build failed: {error}") from None
        target.write_bytes(built.read_bytes())
    state = git_state(arguments.checkout)
    facts = {
        "commit": state["commit"] if state else "",
        "flags": " ".join(FLAGS),
        "mkl": f"{mkl_version()}, sequential",
    }
    target.with_suffix(".json").write_text(json.dumps(facts) + "\n")
    print(f"built {target}")
    print(f"with MKL's path for Intel's CPUs: LD_PRELOAD={any_cpu} chunkbench run authors")


if __name__ == "__main__":
    main()
