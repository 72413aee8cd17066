"""Compares the decode times of the native kernels of two revisions, in turns, in one process and over the same memory.

    python benchmarks/kernel_builds.py BASE                        the revision BASE against this working tree
    python benchmarks/kernel_builds.py BASE --isa avx2 --rounds 25
    python benchmarks/kernel_builds.py BASE --points 4096/3072,1024/1024 --dtype float32

A ratio below 1 means that the working tree is faster. The points are those of `cpu-kernels` with one step. In two
processes, the same code differs by 3 to 5%, because each gets other memory pages. In one process, both builds read the
same huge pages, so a difference of 1% is visible. Both revisions must have the same columns in `kernels/items.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from types import ModuleType
from unittest import mock

import nanobind  # type: ignore[import-untyped]
import torch

from chunkbench import workloads
from chunkbench.baselines.chunk_attn import ChunkAttn
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.measure.caches import CacheSweeper, last_level_cache_bytes
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.bench.workers.pages import environment
from chunkbench.kernels.cpu import decode as native

ROOT = Path(__file__).resolve().parents[1]


def build(name: str, revision: str | None, folder: Path) -> ModuleType:
    """Build and load the native module of a git revision, or of the working tree (None). One process can load both
    modules.
    """
    source = folder / name
    (source / "kernels/cpu").mkdir(parents=True)
    if revision is None:
        shutil.copy(ROOT / "CMakeLists.txt", source)
        shutil.copytree(ROOT / "kernels/cpu/src", source / "kernels/cpu/src")
    else:
        files = ("archive", revision, "CMakeLists.txt", "kernels/cpu/src")
        packed = subprocess.run(["git", *files], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", source], input=packed.stdout, check=True)
    recipe = source / "CMakeLists.txt"
    recipe.write_text(recipe.read_text().replace("(_native NB_STATIC", f"(_native NB_DOMAIN {name} NB_STATIC"))
    target = str(source / "build")
    options = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.cmake_dir()}")
    for command in (
        ["cmake", "-S", str(source), "-B", target, "-DCMAKE_BUILD_TYPE=Release", *options],
        ["cmake", "--build", target, "--parallel"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    (binary,) = (source / "build").glob("_native*.so")
    spec = importlib.util.spec_from_file_location("_native", binary)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ratios(
    point: AttentionPoint, modules: list[ModuleType], isa: str, rounds: int, sweeper: CacheSweeper
) -> list[float]:
    """For each round, the decode time of the new build divided by that of the old build; sorted. Caches are cold."""
    inputs = PooledInputs(point, 0)
    session = ChunkAttn().prepare(inputs)
    session.append(*inputs.completion(1))
    session.plan()
    attention = session.attention  # type: ignore[attr-defined]
    q = inputs.queries(1)
    outs = [torch.empty_like(q) for _ in modules]
    kernels = []
    for module in modules:
        kernel = native.TppNative(attention._store, point.heads)
        kernel._isa = isa
        kernel._fetch_early, kernel._side_by_side = native.read_mode(q.dtype, "same", isa)
        with mock.patch.object(native, "required", lambda module=module: module):
            kernel.plan(attention._tree.plan())
        kernels.append(kernel)
    times: list[list[float]] = []
    for number in range(rounds + 1):
        turn = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            sweeper.sweep()
            started = perf_counter()
            kernels[which].decode_at(q, outs[which], 0, point.head_dim**-0.5)
            turn[which] = perf_counter() - started
        times.append(turn)
    assert torch.allclose(outs[0].float(), outs[1].float(), atol=2e-2)
    return sorted(new / old for old, new in times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="revision that is compared with the working tree")
    parser.add_argument("--isa", default=native.chosen_isa())
    parser.add_argument("--dtype", help="only points of this dtype")
    parser.add_argument("--points", default="", help="only points with these n_p/n_s, e.g. 4096/3072,1024/1024")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    pages = environment("huge", os.environ)
    if os.environ.get("GLIBC_TUNABLES") != pages["GLIBC_TUNABLES"]:  # glibc reads it only when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | pages)
    workloads.register()
    sweeper = CacheSweeper("cpu", last_level_cache_bytes("cpu"))
    wanted = [tuple(map(int, text.split("/"))) for text in filter(None, options.points.split(","))]
    with tempfile.TemporaryDirectory() as folder:
        modules = [build("old", options.base, Path(folder)), build("new", None, Path(folder))]
        medians = []
        for point in load_experiment("cpu-kernels").points("cpu", "bfloat16"):
            if point.n_c > 1 or (options.dtype and point.dtype != options.dtype):
                continue
            if wanted and (point.n_p, point.n_s) not in wanted:
                continue
            found = ratios(point, modules, options.isa, options.rounds, sweeper)
            quarter = len(found) // 4
            medians.append(median(found))
            print(
                f"{point.brief} {point.dtype}: {medians[-1]:.3f} ({found[quarter]:.3f} to {found[-1 - quarter]:.3f})",
                flush=True,
            )
    print(f"{options.isa}: geometric mean {geometric_mean(medians):.3f}, largest {max(medians):.3f}")


if __name__ == "__main__":
    main()
