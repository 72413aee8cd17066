"""Processors of other kinds: the portable loops, compiled for Arm, in an emulator of its CPUs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.torture.trials import Harm, Trial, Unavailable, ran

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_suffix(".cpp")
SOURCES = ROOT / "kernels" / "cpu" / "src"
BUILT = ROOT / "build" / "processors"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"
MISSING = "there is no {}; `make processors` installs Debian's compiler for Arm and QEMU"
WITHOUT_PYTHON = (
    "attention", "cpu_features", "decode_plan", "linear", "loops", "packing", "parallel", "probes", "schedule",
)  # fmt: skip
FLAGS = ["-std=c++17", "-O3", "-DNDEBUG", "-fno-strict-aliasing", "-pthread"]
"""Those of a release build, see CMakeLists.txt."""
CPUS = {
    # NEON, which the module is compiled for; and the vectors without a fixed length that a compiler makes if it may.
    "neon": ([], ["cortex-a53", "cortex-a72", "neoverse-n1", "max"]),
    "sve": (["-march=armv8.2-a+sve"], [f"max,sve{bits}=on" for bits in (128, 256, 512, 1024, 2048)]),
}
FORESTS = 10


def program(name: str, make: bool) -> Path:
    """The program for a kind of CPU, compiled if `make` and it is older than its sources. Raises Unavailable."""
    flags, folder = CPUS[name][0], BUILT / name
    newest = max(path.stat().st_mtime for path in (*SOURCES.iterdir(), DRIVER, Path(__file__)))
    made = folder / "processors"
    if made.exists() and made.stat().st_mtime > newest and shutil.which(EMULATOR):
        return made
    if not make:
        raise Unavailable(f"{made} is not up to date; `make torture PART=processors` makes it")
    for needed in (COMPILER, EMULATOR):
        if shutil.which(needed) is None:
            raise Unavailable(MISSING.format(needed))
    folder.mkdir(parents=True, exist_ok=True)
    objects = {
        path: folder / f"{path.stem}.o" for path in (DRIVER, *(SOURCES / f"{one}.cpp" for one in WITHOUT_PYTHON))
    }

    def compiled(source: Path) -> None:
        printed([COMPILER, *FLAGS, *flags, "-c", str(source), "-o", str(objects[source])])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, objects))
    printed([COMPILER, "-pthread", *map(str, objects.values()), "-o", str(made)])
    return made


def printed(command: Sequence[str]) -> str:
    """What a program printed. Raises AssertionError if it does not end well."""
    done = ran(command)
    assert done.returncode == 0, f"{' '.join(command)} returned {done.returncode}: {done.stdout[-300:]}{done.stderr}"
    return done.stdout


@contextmanager
def on_arm(make: bool) -> Iterator[Harm]:
    programs = {name: program(name, make) for name in CPUS}

    def harm(trial: Trial) -> int:
        name = trial.chance.choice(list(CPUS))
        cpu = trial.chance.choice(CPUS[name][1])
        words = [EMULATOR, "-L", LIBRARIES, "-cpu", cpu, str(programs[name])]
        *_, last = printed([*words, str(trial.number * FORESTS), str(FORESTS)]).splitlines()
        loops, _, results = last.partition(": ")
        assert loops == "neon", last
        return int(results.split()[0])

    yield harm
